"""Checks answers of a real server against docs/openapi.yaml."""
import json
import os
import re

import jsonschema
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
METHODS = ("get", "put", "post", "delete")


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
