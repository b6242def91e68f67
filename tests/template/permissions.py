"""Write docs/permissions.md from the template: `make permissions`. A test compares the two."""

from __future__ import annotations

import re
import sys
from typing import Any

from tests.template.deployment import ROOT, translated

TARGET = ROOT / "docs" / "permissions.md"
# What a condition of the template means to the person who deploys it.
CONDITIONS = {
    "CreatesDatabase": "`CreateDatabase=true`",
    "GivesDatabaseSecret": "`DatabaseSecretArn` given",
    "HasSecretsKey": "`SecretsKmsKeyArn` given",
    "HasWebhookSecrets": "`SumeWebhookSecretsArn` given",
    "HasFollowUps": "",  # the statements say which target
    "FeedsArchiveDirectly": "`ArchiveBucket` without a bus",
    "HasOwnQueue": "`FollowUpQueueArn` given",
    "HasEventBus": "`FollowUpEventBusArn` given",
    "QueueHasKey": "that queue has `FollowUpKmsKeyArn`",
    "HasFollowUpKey": "`FollowUpKmsKeyArn` given",
    "HasArchive": "`ArchiveBucket` given",
}
FUNCTIONS = ("submit", "reap", "poll", "dispatch", "webhook", "api", "archive", "migrate")
HEAD = """# What each function may do

Written by `make permissions` from the template, and held to it by a test. Every function has a
role of its own. The last column says when; where it is empty, every deployment has it.

| function | action | on | where |
|---|---|---|---|
"""
TAIL = """
Besides these, SAM gives every role policies of AWS: `AWSLambdaBasicExecutionRole` (write logs),
`AWSXrayWriteOnlyAccess` (send traces) and, inside a VPC, `AWSLambdaVPCAccessExecutionRole`
(network interfaces). A key of KMS may only be used through the service that the policy's condition
names (`kms:ViaService`). The schedules' roles may invoke their function and write to
`FailedRunsQueue`.

## Who may call

| what | who |
|---|---|
| `POST /webhooks/sume` | anybody; the function checks Sume's signature first |
| {closed} | who may `execute-api:Invoke` the route, or has a token of `JwtIssuer` |
| the functions | EventBridge Scheduler, API Gateway, the archive's queue, CloudFormation |

Whoever may call the closed routes sees all jobs. An IAM policy can tell the routes apart by their
resource, such as `arn:aws:execute-api:<region>:<account>:<api>/*/GET/support/*` for support.
"""


def shown(value: Any) -> str:
    """A resource as a person would write it."""
    if isinstance(value, str):
        return f"`{value}`"
    ((key, inner),) = value.items()
    if key == "Ref":
        return f"`{inner}`"
    if key == "Fn::GetAtt":
        return f"`{'.'.join(inner)}`"
    if key == "Fn::Sub" and isinstance(inner, str):
        return f"`{re.sub(r'[$]{AWS::[A-Za-z]+}', '*', inner)}`"
    if key == "Fn::Sub" and (whole := re.fullmatch(r"\$\{(\w+)\}", inner[0])):
        return shown(inner[1][whole[1]])
    raise ValueError(f"no words for {value}")


def statements(value: Any, where: tuple[str, ...] = ()) -> Any:
    """Every statement in a part of the template, with the conditions under which it is there."""
    if isinstance(value, list):
        for item in value:
            yield from statements(item, where)
    elif isinstance(value, dict) and "Fn::If" in value:
        name, yes, no = value["Fn::If"]
        yield from statements(yes, (*where, CONDITIONS[name]))
        yield from statements(no, (*where, f"not {CONDITIONS[name]}"))
    elif isinstance(value, dict) and "Statement" in value:
        yield from statements(value["Statement"], where)
    elif isinstance(value, dict) and "PolicyDocument" in value:
        yield from statements(value["PolicyDocument"], where)
    elif isinstance(value, dict) and "Effect" in value:
        yield value, where
    elif isinstance(value, dict) and "Ref" in value and value["Ref"] != "AWS::NoValue":
        policy = translated()["Resources"][value["Ref"]]
        assert policy["Type"] == "AWS::IAM::ManagedPolicy"
        yield from statements(policy["Properties"], where)


def rows(function: str) -> list[str]:
    """The lines of the table for one function."""
    resources = translated()["Resources"]
    role = resources[f"{function.title()}FunctionRole"]
    where = (CONDITIONS[role["Condition"]],) if "Condition" in role else ()
    properties = role["Properties"]
    # AWS's own policies are strings or joins; the project's are references.
    found = statements([properties.get("Policies", []), properties["ManagedPolicyArns"]], where)
    lines = []
    for statement, conditions in found:
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            # "not A" says nothing more where statements exclude each other.
            needed = [text for text in dict.fromkeys(conditions) if text and text[:4] != "not "]
            if action == "rds-db:connect":
                needed.append("IAM authentication")
            words = " and ".join(needed)
            lines.append(f"| {function} | `{action}` | {shown(statement['Resource'])} | {words} |")
    return sorted(set(lines))


def page() -> str:
    """The whole page."""
    paths = translated()["Resources"]["HttpApi"]["Properties"]["Body"]["paths"]
    closed = ", ".join(
        f"`{method.upper()} {path}`"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "security" in operation
    )
    table = "\n".join(line for function in FUNCTIONS for line in rows(function))
    return HEAD + table + "\n" + TAIL.replace("{closed}", closed)


def main() -> int:
    """Write the page."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
