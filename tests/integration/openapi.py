"""Checks answers of a real server against docs/openapi.yaml."""
import json
import os
import re

import jsonschema
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
METHODS = ("get", "put", "post", "delete")
LONGEST = 5000  # list that is sent to be too long


class OpenApi:
    def __init__(self, swarm):
        with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
            self.doc = yaml.safe_load(f)
        self.swarm = swarm
        self.called = set()  # (operationId, status)

    def operations(self):
        return {op["operationId"]: (method, path, op) for path, item in self.doc["paths"].items()
                for method, op in item.items() if method in METHODS}

    def deref(self, node):
        """The object that a $ref points to."""
        if "$ref" not in node:
            return node
        at = self.doc
        for part in node["$ref"][2:].split("/"):
            at = at[part]
        return at

    def validate(self, value, schema):
        schema = {**schema, "components": self.doc["components"]}
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        errors = [f"at {'/'.join(map(str, e.absolute_path)) or 'the top'}: {e.message[:300]}"
                  for e in validator.iter_errors(value)]
        assert not errors, "\n".join(errors[:10])

    def example(self, schema):
        """A value that the schema allows: the least one of each kind."""
        schema = self.deref(schema)
        if "enum" in schema:
            return schema["enum"][0]
        if schema["type"] == "object":
            return {k: self.example(schema["properties"][k]) for k in schema.get("required", [])}
        if schema["type"] == "array":
            return [self.example(schema["items"])] * schema.get("minItems", 0)
        if schema["type"] == "string":
            return "0" * 64 if "pattern" in schema else "a" * max(schema.get("minLength", 0), 1)
        return True if schema["type"] == "boolean" else schema.get("minimum", 1)

    def spoiled(self, schema):
        """Values that the schema forbids: each has one thing wrong."""
        schema = self.deref(schema)
        kind, plain = schema["type"] if "enum" not in schema else "enum", self.example(schema)
        yield from (None, [[]], {"a": []}) if kind not in ("array", "object") else (None, "a", 7, True)
        if kind == "object":
            yield {**plain, "prioritee": 1}
            yield from ({k: v for k, v in plain.items() if k != gone} for gone in schema.get("required", []))
            for name, inner in schema.get("properties", {}).items():
                yield from ({**plain, name: value} for value in self.spoiled(inner))
        elif kind == "array":
            yield from ([value] for value in self.spoiled(schema["items"]))
            if "minItems" in schema:
                yield []
            if schema.get("maxItems", LONGEST) < LONGEST:
                yield [self.example(schema["items"])] * (schema["maxItems"] + 1)
        elif kind in ("integer", "number"):
            yield from ("1", True)
            little = 1 if kind == "integer" else 0.001
            yield from (schema[bound] + beyond for bound, beyond in (("minimum", -little), ("maximum", little)) if bound in schema)
            if kind == "integer":
                yield schema.get("minimum", 0) + 0.5
        elif kind in ("string", "enum"):
            yield from (7, False)
            if kind == "enum" or "pattern" in schema:
                yield "nobody"
            if schema.get("minLength"):
                yield ""
            if "maxLength" in schema:
                yield "a" * (schema["maxLength"] + 1)
        else:
            yield from ("true", 1)

    def body(self, op):
        """The schema of an operation's JSON body; None: it takes none."""
        content = op.get("requestBody", {}).get("content", {})
        return content.get("application/json", {}).get("schema")

    def validate_named(self, value, name):
        self.validate(value, {"$ref": f"#/components/schemas/{name}"})

    def call(self, operation, status=200, params=None, **kw):
        """Calls an operation and checks the answer against the documentation of its status."""
        method, path, op = self.operations()[operation]
        for name, value in (params or {}).items():
            path = path.replace("{%s}" % name, str(value))
        assert "{" not in path, path
        kw.setdefault("timeout", 20)
        kw.setdefault("allow_redirects", False)
        answer = self.swarm.session.request(method.upper(), self.swarm.url + path, **kw)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code}, not {status}: {answer.text[:500]}"
        self.check(op, answer)
        self.called.add((operation, status))
        return answer

    def check(self, op, answer):
        documented = op["responses"].get(str(answer.status_code))
        assert documented, f"{op['operationId']} does not document {answer.status_code}: {answer.text[:200]}"
        content = self.deref(documented).get("content")
        if not content or answer.request.method == "HEAD":
            return
        kind = answer.headers["Content-Type"].split(";")[0]
        assert kind in content, f"{op['operationId']} answers {kind}, documented are {list(content)}"
        schema = content[kind].get("schema") or {}
        if kind == "application/json":
            self.validate(answer.json(), schema)
        elif kind == "application/x-ndjson":
            for line in answer.text.splitlines():
                self.validate(json.loads(line), schema)
        elif kind.startswith("text/"):
            self.validate(answer.text, schema)


def registered_routes():
    """(method, pattern) of every route in the source of the server."""
    found = set()
    for path in ("coordinator/http/http_api.c", "common/net/http/blob_http.c"):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            found |= set(re.findall(r'"(GET|PUT|POST|DELETE)",\s*"(/[^"]*)"', f.read()))
    return found
