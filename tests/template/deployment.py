"""The template as CloudFormation would see it: translated, with parameters, conditions resolved.

Nothing is sent to AWS. `Deployment(Name="value")` stands for one stack with these parameters.
"""

from __future__ import annotations

import copy
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any
from unittest import mock

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).parents[2]
STACK = "shop-prod"
PSEUDO = {
    "AWS::StackName": STACK,
    "AWS::Region": "eu-central-1",
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}
NO_VALUE = object()


def secret_arn(name: str) -> str:
    return f"arn:aws:secretsmanager:eu-central-1:123456789012:secret:{name}-AbCd12"


API_KEY_ARN = secret_arn("sume-api-key")
DATABASE_ARN = secret_arn("database")
SIGNING_ARN = secret_arn("sume-signing")


@functools.cache
def _source() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    return loaded


def source() -> dict[str, Any]:
    """The template as written, intrinsic functions in their long form; a copy to change at will."""
    return copy.deepcopy(_source())


def translate(template: dict[str, Any]) -> dict[str, Any]:
    """What the SAM transform makes of a template. Raises InvalidDocumentException."""
    for resource in template["Resources"].values():
        for key in ("CodeUri", "ContentUri"):
            if key in resource.get("Properties", {}):
                resource["Properties"][key] = "s3://bucket/key"
        if "TemplateURL" in resource.get("Properties", {}):
            resource["Properties"]["TemplateURL"] = "https://bucket.s3.amazonaws.com/key"
    policies = mock.Mock()
    policies.load.return_value = {}
    with mock.patch.dict("os.environ", AWS_DEFAULT_REGION=PSEUDO["AWS::Region"]):
        translated: dict[str, Any] = transform(template, {}, policies)
    return translated


@functools.cache
def _translated() -> dict[str, Any]:
    return translate(source())


def translated() -> dict[str, Any]:
    return copy.deepcopy(_translated())


def references(value: Any) -> set[str]:
    """The names that a part of a template refers to, by Ref, Fn::GetAtt, Fn::Sub and Fn::If."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("Ref", "Condition") and isinstance(inner, str):
                found.add(inner)
            elif key == "Fn::GetAtt":
                found.add(inner[0] if isinstance(inner, list) else inner.split(".")[0])
            elif key == "Fn::Sub":
                text, own = (inner[0], inner[1]) if isinstance(inner, list) else (inner, {})
                names = {name.split(".")[0] for name in re.findall(r"\$\{([^!}]+)\}", text)}
                found |= (names - set(own)) | references(own)
            elif key == "Fn::If":
                found |= {inner[0]} | references(inner[1:])
            else:
                found |= references(inner)
    elif isinstance(value, list):
        for inner in value:
            found |= references(inner)
    return found


def creation_order(template: dict[str, Any]) -> list[str]:
    """The order in which resources can be made. Raises graphlib.CycleError if there is none."""
    resources = template["Resources"]
    graph = {}
    for name, resource in resources.items():
        needs = resource.get("DependsOn", [])
        needs = {needs} if isinstance(needs, str) else set(needs)
        graph[name] = (needs | references(resource.get("Properties", {}))) & set(resources)
    return list(TopologicalSorter(graph).static_order())


class Deployment:
    """One stack. `resources` maps logical ids to resources without conditions and parameters.

    References to other resources are left as `<LogicalId>` or `<LogicalId.Attribute>`.
    """

    def __init__(self, **parameters: Any) -> None:
        template = translated()
        declared = template["Parameters"]
        unknown = set(parameters) - set(declared)
        assert not unknown, f"no such parameter: {unknown}"
        given = {"SumeApiKeySecretArn": API_KEY_ARN, **parameters}
        self.parameters = {
            name: self._typed(declaration, given.get(name, declaration.get("Default")))
            for name, declaration in declared.items()
        }
        self._conditions = template["Conditions"]
        self.resources: dict[str, Any] = {}
        for name, resource in template["Resources"].items():
            if "Condition" not in resource or self.condition(resource["Condition"]):
                self.resources[name] = self.resolve(resource)
        self.outputs = {
            name: self.resolve(output["Value"])
            for name, output in template["Outputs"].items()
            if "Condition" not in output or self.condition(output["Condition"])
        }

    @staticmethod
    def _typed(declaration: dict[str, Any], value: Any) -> Any:
        # CloudFormation hands on every parameter as text, lists as lists of text.
        if declaration["Type"] == "CommaDelimitedList":
            return [part.strip() for part in str(value).split(",")]
        return str(value)

    def condition(self, name: str) -> bool:
        return bool(self.resolve(self._conditions[name]))

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            items = [self.resolve(item) for item in value]
            return [item for item in items if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((key, inner),) = value.items()
            method = getattr(self, "_" + key.removeprefix("Fn::").lower(), None)
            if method and (key in ("Ref", "Condition") or key.startswith("Fn::")):
                return method(inner)
        resolved = {key: self.resolve(inner) for key, inner in value.items()}
        return {key: inner for key, inner in resolved.items() if inner is not NO_VALUE}

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in PSEUDO:
            return PSEUDO[name]
        return self.parameters.get(name, f"<{name}>")

    def _condition(self, name: str) -> Any:
        return self.condition(name) if isinstance(name, str) else {"Condition": self.resolve(name)}

    def _getatt(self, inner: list[str]) -> str:
        return f"<{inner[0]}.{inner[1]}>"

    def _sub(self, inner: Any) -> str:
        text, own = (inner[0], self.resolve(inner[1])) if isinstance(inner, list) else (inner, {})

        def value(found: re.Match[str]) -> str:
            return str(own[found[1]] if found[1] in own else self._ref(found[1]))

        return re.sub(r"\$\{([^}]+)\}", value, text)

    def _if(self, inner: list[Any]) -> Any:
        return self.resolve(inner[1] if self.condition(inner[0]) else inner[2])

    def _equals(self, inner: list[Any]) -> bool:
        left, right = self.resolve(inner)
        return str(left) == str(right)

    def _not(self, inner: list[Any]) -> bool:
        return not self.resolve(inner[0])

    def _or(self, inner: list[Any]) -> bool:
        return any(self.resolve(item) for item in inner)

    def _and(self, inner: list[Any]) -> bool:
        return all(self.resolve(item) for item in inner)

    def _split(self, inner: list[Any]) -> list[str]:
        return str(self.resolve(inner[1])).split(inner[0])

    def _select(self, inner: list[Any]) -> Any:
        index, values = int(inner[0]), self.resolve(inner[1])
        # What only CloudFormation knows, such as an ARN, has no parts here.
        return values[index] if index < len(values) else f"{values[0]}[{index}]"

    def _join(self, inner: list[Any]) -> str:
        return str(inner[0]).join(str(part) for part in self.resolve(inner[1]))

    def of_type(self, kind: str) -> dict[str, Any]:
        """Logical id -> properties of every resource of a type."""
        return {
            name: resource.get("Properties", {})
            for name, resource in self.resources.items()
            if resource["Type"] == kind
        }

    @property
    def functions(self) -> dict[str, Any]:
        """Function name as in `functions/` -> properties."""
        return {
            name.removesuffix("Function").lower(): properties
            for name, properties in self.of_type("AWS::Lambda::Function").items()
        }

    def environment(self, function: str) -> dict[str, str]:
        variables: dict[str, str] = self.functions[function]["Environment"]["Variables"]
        return variables

    def permissions(self, function: str) -> set[tuple[str, str]]:
        """Every (action, resource) a function's own policies allow, those of AWS left out."""
        role = self.resources[f"{function.title()}FunctionRole"]["Properties"]
        documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
        for arn in role["ManagedPolicyArns"]:
            if arn.startswith("<"):
                documents.append(self.resources[arn[1:-1]]["Properties"]["PolicyDocument"])
        allowed = set()
        for document in documents:
            for statement in document["Statement"]:
                assert statement["Effect"] == "Allow"
                actions, targets = statement["Action"], statement["Resource"]
                for action in [actions] if isinstance(actions, str) else actions:
                    for target in [targets] if isinstance(targets, str) else targets:
                        allowed.add((action, target))
        return allowed
