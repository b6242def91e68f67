"""Say what `make deploy-check` proved, once it has: run at its end."""

from __future__ import annotations

import sys
import textwrap

from tests.runtime import emulator
from tests.template.deployment import ROOT, source, translated

PROVED = """
Templates are valid SAM and CloudFormation; cfn-lint, its serverless rules and checkov are content.
{resources} resources can be created in some order, and are right in every kind of configuration.
Each function may do what docs/permissions.md says and nothing else; secrets stay addresses.
One route is open, the webhook's; {closed} others are closed by IAM or by a token.
Schedules tick without fixed names and without retries; failed runs are kept.
Time limits contain each other for every value that a parameter allows.
A new layer reaches every function, migrates the schema first, and publishes new versions.
migrate answers CloudFormation whatever happens, and never goes back.
Each alarm looks at a metric that is told and has a heading in the runbook whose queries run.
""".strip().splitlines()
BUILT = """
sam build makes both processors: every binary for its own, glibc and size within Lambda's limits.
Each built function can be imported with nothing but the layer.
""".strip().splitlines()
EMULATED = """
Built functions start, stay warm and keep their connection in Lambda's own runtime for Python 3.13.
Killed in the middle of a batch, each row is billed once all the same.
""".strip().splitlines()
NOT_PROVED = """
Whether IAM, the VPC's routes, IAM authentication, API Gateway and the scheduler do in AWS what the
templates say; whether arm64 runs (its binaries are inspected, not started); quotas of the account.
docs/deploy.md has the few commands that show it after the first deployment.
""".strip()


def main() -> int:
    """Print the list."""
    paths = translated()["Resources"]["HttpApi"]["Properties"]["Body"]["paths"]
    routes = sum(len(methods) for methods in paths.values())
    lines = [
        line.format(resources=len(source()["Resources"]), closed=routes - 1) for line in PROVED
    ]
    built = (ROOT / ".aws-sam" / "built").exists()
    lines += BUILT if built else []
    lines += EMULATED if built and emulator.missing() is None else []
    print("\nProved without AWS:")
    for line in lines:
        print(f"  + {line}")
    if not built:
        print("  NOT RUN: sam build (no Python 3.13 here)")
    elif emulator.missing() is not None:
        print(f"  NOT RUN: {emulator.missing()}")
    print("Not proved:")
    print(
        textwrap.indent(NOT_PROVED, "  - ", lambda line: line == NOT_PROVED.splitlines()[0] + "\n")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
