"""`tsplat share` and `tsplat pull`, with a server on this machine that stands in for the Hugging Face Hub."""

import base64
import http.server
import io
import json
import sys
import threading

import pytest
from PIL import Image

from tsplat import cli
from tsplat.scene import read_model

SHARED = {"README.md", "preview.png", "scene.ply"}


class Server(http.server.ThreadingHTTPServer):
    """The Hub: keeps the files of repositories that are small enough to be part of a commit.

    Attributes:
        files: Content by the name of a repository and a file.
        created: What was asked of each repository that was created.
        status: What it answers instead, such as 401; None for what was asked.
        tokens: Authorizations of all requests.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.created, self.status, self.tokens = {}, [], None, set()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.tokens.add(self.headers["Authorization"])
        status, answer, headers = self.answer(body) if self.server.status is None else (self.server.status, b"{}", {})
        self.send_response(status)
        for name, value in ({"Content-Length": len(answer)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_POST = handle_request  # noqa: N815 - the names of http.server

    def answer(self, body):
        parts, files, commit = self.path.partition("?")[0].strip("/").split("/"), self.server.files, "a" * 40
        if parts[:3] == ["api", "repos", "create"]:
            asked = json.loads(body)
            self.server.created.append(asked)
            return self.json(url=f"{self.server.address}/{asked['organization']}/{asked['name']}")
        if parts == ["api", "validate-yaml"]:
            if "license: unknown" not in json.loads(body)["content"]:
                return self.json(warnings=[], errors=[])
            return 400, json.dumps({"errors": [{"message": '"license" must be one of [mit]'}]}).encode(), {}
        if parts[:2] == ["api", "models"]:
            repository, action = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else ""
            if action == "preupload":
                kept = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
                return self.json(files=[file | {"shouldIgnore": False, "oid": None} for file in kept])
            if action == "commit":
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        files[repository, line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                url = f"{self.server.address}/{repository}/commit/{commit}"
                return self.json(success=True, commitOid=commit, commitUrl=url, hookOutput="")
            if action == "tree":
                sizes = {name: len(content) for (owner, name), content in files.items() if owner == repository}
                return self.json([{"type": "file", "path": name, "size": n, "oid": ""} for name, n in sizes.items()])
            names = [{"rfilename": name} for owner, name in files if owner == repository]
            return self.json(id=repository, sha=commit, siblings=names, private=False, tags=[], downloads=0, likes=0)
        key = "/".join(parts[:2]), "/".join(parts[4:])  # OWNER/NAME/resolve/main/FILE
        if key not in files:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        return 200, files[key], {"ETag": f'"{hash(files[key]):x}"', "X-Repo-Commit": commit}

    def json(self, listed=None, **values):
        return 200, json.dumps(values if listed is None else listed).encode(), {"Content-Type": "application/json"}


@pytest.fixture
def hub(monkeypatch):
    pytest.importorskip("huggingface_hub")
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_TOKEN", "hf_token")
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server
        server.shutdown()


def test_model_is_shared_and_pulled(hub, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["share", str(model), "user/balls", "--license", "cc-by-4.0", "--private"]) == 0
    printed = capsys.readouterr().out
    assert f"uploaded README.md, preview.png, scene.ply: {hub.address}/user/balls\n" in printed
    assert printed.endswith("next: tsplat pull user/balls\n")
    assert set(hub.files) == {("user/balls", name) for name in SHARED}
    (created,) = hub.created
    assert created.get("visibility", created.get("private")) in ("private", True)  # before version 2: "private"
    assert "Bearer hf_token" in hub.tokens
    card = hub.files["user/balls", "README.md"].decode()
    assert card.startswith("---\nlicense: cc-by-4.0\n") and "3 Gaussians" in card and str(tmp_path) not in card
    with Image.open(io.BytesIO(hub.files["user/balls", "preview.png"])) as image:
        assert len(image.getcolors(1 << 20)) > 100

    assert cli.main(["pull", "user/balls"]) == 0
    assert "wrote balls.ply" in capsys.readouterr().out
    assert (read_model("balls.ply").means == read_model(model).means).all()


def test_run_is_shared_without_photographs_and_its_card_is_kept(hub, stopped_run, capsys):
    assert cli.main(["share", str(stopped_run), "user/run", "--license", "other"]) == 0
    assert {name for _, name in hub.files} == SHARED
    hub.files["user/run", "README.md"] = b"edited"
    assert cli.main(["share", str(stopped_run), "user/run", "--file", "scene.splat"]) == 0
    assert "uploaded preview.png, scene.splat: " in (printed := capsys.readouterr().out)
    assert "note: scene.splat does not store all of the model exactly: " in printed
    assert hub.files["user/run", "README.md"] == b"edited"
    assert cli.main(["share", str(stopped_run), "user/run", "--license", "cc0-1.0"]) == 2
    assert "--license: user/run has a card" in capsys.readouterr().err


def test_license_is_asked_for(hub, model, monkeypatch, capsys):
    assert cli.main(["share", str(model), "user/balls"]) == 2
    assert "--license: expected the license of the model" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("CC BY\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert cli.main(["share", str(model), "user/balls"]) == 2
    assert "such as cc-by-4.0, found 'CC BY'" in capsys.readouterr().err
    assert cli.main(["share", str(model), "user/balls", "--license", "unknown"]) == 2
    assert '"license" must be one of [mit]' in capsys.readouterr().err
    assert not hub.files


def test_pull_chooses_a_model_and_writes_no_damaged_one(hub, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hub.files = {("a/b", name): model.read_bytes() for name in ("one.ply", "deep/two.ply", "weights.pt")}
    assert cli.main(["pull", "a/b"]) == 2
    assert "expected one model, found one.ply, deep/two.ply; choose one with --file" in capsys.readouterr().err
    assert cli.main(["pull", "a/b", "--file", "weights.pt"]) == 2
    assert cli.main(["pull", "a/b", "--file", "deep/two.ply", "--out", "two.splat"]) == 2
    assert "--out: expected a name with the suffix of deep/two.ply" in capsys.readouterr().err
    assert cli.main(["pull", "a/b", "--file", "deep/two.ply"]) == 0
    assert (tmp_path / "two.ply").read_bytes() == model.read_bytes()
    hub.files["a/b", "scene.ply"] = model.read_bytes()[:-9]
    assert cli.main(["pull", "a/b"]) == 2
    assert "cut short" in capsys.readouterr().err
    assert not (tmp_path / "b.ply").exists()


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "the name"), (418, "again")]
)
def test_answers_are_errors_with_what_to_do(hub, model, status, advice, capsys):
    hub.status = status
    for words in (["pull", "a/b"], ["share", str(model), "a/b", "--license", "mit"]):
        assert cli.main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"tsplat: error: a/b: the Hub answered {status}; ") and advice in error


@pytest.mark.parametrize("package", ["httpx2", "httpx", "requests"])
def test_errors_of_connections_are_errors_with_what_to_do(hub, monkeypatch, package, capsys):
    error = type("ConnectError", (Exception,), {"__module__": f"{package}.exceptions"})("no route\nto there")

    def raise_error(*_arguments, **_options):
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", raise_error)
    assert cli.main(["pull", "a/b"]) == 2
    expected = "tsplat: error: a/b: no route; check the name and the network, and try again\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("name", ["balls", "a/b/c", "a/../b", "https://huggingface.co/a/b"])
def test_repositories_have_an_owner_and_a_name(name, capsys):
    assert cli.main(["pull", name]) == 2
    assert "OWNER/NAME" in capsys.readouterr().err


def test_missing_package_is_named(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for words in (["pull", "a/b"], ["share", str(model), "a/b"]):
        assert cli.main(words) == 2
        assert "pip install 'tsplat[hub]'" in capsys.readouterr().err
