"""What AWS asks, in US dollars, in US East (N. Virginia), without the free tier.

Looked up on 2026-11-30 in copies of these pages: aws.amazon.com/lambda/pricing, its summary at
cloudchipr.com/blog/aws-lambda-pricing, awsforengineers.com/blog/aws-api-gateway-pricing-explained.
The scheduler's and the queue's are list prices from memory. Look again before you rely on one.
"""

from __future__ import annotations

GB_SECOND = {"x86_64": 0.0000166667, "arm64": 0.0000133334}
LAMBDA_REQUEST = 0.20 / 1e6
HTTP_API_REQUEST = 1.00 / 1e6
SCHEDULED_RUN = 1.00 / 1e6
SQS_REQUEST = 0.40 / 1e6
# A function with so much memory has one processor to itself (AWS Lambda developer guide,
# "Configure Lambda function memory").
PROCESSOR_MEGABYTES = 1769
