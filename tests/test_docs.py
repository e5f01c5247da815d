"""Every code block of every page is true: parsed against the command line and the schemas, and executed where that can be.

A block without a mark is executed. `<!-- not executed: REASON -->` before it, or `<!-- nothing here is executed: REASON -->`
once on a page, leaves it at the first level. `title="FILE"` on a fence makes the block a file for the commands after it.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

import compiled
import tpulm
from command_line import run_process
from toy_runs import WORDS, write_corpus
from tpulm import config
from tpulm.cli.app import app
from tpulm.cloud.settings import CloudSettings

ROOT = Path(__file__).resolve().parents[1]
COMMANDS: Any = get_command(app)
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
PAGES |= {f"docs/{name}": text for name, text in runpy.run_path(str(ROOT / "docs/generate.py"))["untracked_pages"]().items()}
FENCE = re.compile(
    r"^(?:<!-- not executed: (?P<reason>[^\n]+?) -->\n+)?```(?P<language>\w*)(?P<attributes>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WHOLE_PAGE = re.compile(r"^<!-- nothing here is executed: (.+?) -->$", re.MULTILINE)
LANGUAGES = {"sh", "python", "toml", "json", "dockerfile", "text"}
OUTPUT = {"dockerfile", "text"}  # nothing to parse


class Block(NamedTuple):
    page: str
    line: int
    language: str
    title: str  # the file that it is
    reason: str  # why it is not executed
    code: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_executed(self) -> bool:
        return not self.reason and (self.language in {"sh", "python"} or bool(self.title))


def blocks_of(page: str) -> list[Block]:
    text = PAGES[page]
    whole = WHOLE_PAGE.search(text)
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        title = "".join(re.findall(r'title="([^"]+)"', match["attributes"]))
        reason = match["reason"] or (whole[1] if whole else "")
        found.append(Block(page, line, match["language"].replace("bash", "sh"), title, reason, match["code"]))
    return found


def commands_in(code: str) -> Iterator[list[str]]:
    """The words of each simple command of a shell script, without comments, variables set and redirections."""
    operators = {ord(sign): chr(0xE000 + ord(sign)) for sign in "|&;<>\n"}  # in quotes they are text
    plain = {hidden: sign for sign, hidden in operators.items()}
    code = re.sub(
        r"""('[^']*'|"[^"]*")|(?:^|(?<=\s))#[^\n]*""",
        lambda match: (match[1] or "").translate(operators),
        code.replace("\\\n", " "),
    )
    lexer = shlex.shlex(code, posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    redirected = False
    for token in [*lexer, "\n"]:
        if set(token) <= set("|&;\n"):
            if words:
                yield words
            words, redirected = [], False
        elif set(token) <= set("<>&"):
            redirected = True
        elif redirected:
            redirected = False
        elif words or not re.match(r"\w+=", token):
            words.append("".join(chr(plain.get(sign, ord(sign))) for sign in token))


def check_command(words: list[str]) -> None:
    """It would be understood: commands, options and their values, settings, extras, targets, files of the repository."""
    match words:
        case ["tpulm", *arguments] | [".venv/bin/tpulm", *arguments]:
            check_tpulm(arguments)
        case ["pip", "install", *arguments]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for named in re.findall(r"^\.\[(.+)\]$", "\n".join(arguments), re.MULTILINE):
                assert set(named.split(",")) <= set(extras)
        case ["make", *targets]:
            for target in targets:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["python", program, *_] if program.startswith(("examples/", "benchmarks/", "docs/")):
            assert (ROOT / program).is_file(), program


def check_tpulm(arguments: list[str]) -> None:
    command: Any = COMMANDS
    path, rest = ["tpulm"], list(arguments)
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"{' '.join(path)} has no command {rest[:1]}"
        command = command.commands[rest[0]]
        path.append(rest.pop(0))
    given = command.make_context(" ".join(path), rest).params  # what the parser refuses is raised
    settings = [one for one in given.get("overrides") or () if "=" in one]
    if path[1] == "finetune":
        config.load_finetune(settings)
    elif settings:
        reference = given.get("reference", "")
        config.load(reference if reference in config.list_recipes() else "bert-mini", settings)


def check_toml(code: str, folder: Path) -> None:
    """A cloud.toml, a run file, or a part of one."""
    values = tomllib.loads(code)
    if "secrets" in values or set(values) & (set(CloudSettings.model_fields) - set(config.RunConfig.model_fields)):
        CloudSettings.model_validate({"project": "my-project", **values})
        return
    part = "extends" not in values and "name" not in values
    (folder / "part.toml").write_text(f'extends = "bert-mini"\n{code}' if part else code)
    config.load(folder / "part.toml")


def check_python(code: str, place: str) -> None:
    tree = ast.parse(code, place)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tpulm":
            getattr(tpulm, node.attr)
    compile(tree, place, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_parses(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.place}: name the language of the block, one of {sorted(LANGUAGES)}"
        try:
            match block.language:
                case "sh":
                    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True, capture_output=True)
                    for words in commands_in(block.code):
                        check_command(words)
                case "python":
                    check_python(block.code, block.place)
                case "toml":
                    check_toml(block.code, tmp_path)
                case "json":
                    json.loads(block.code)
        except Exception as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}\n{block.code}") from error


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page: str):
    """Commands and names of options; capitals, brackets and dots stand for what the reader knows."""
    for inline in re.findall(r"`tpulm ([^`]+)`", FENCE.sub("", PAGES[page])):
        words = re.sub(r"[\[\]…]|\.\.\.", " ", inline).split()
        command: Any = COMMANDS
        while hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+", words[0]) and words[0][0] != "-":
            assert words[0] in command.commands, f"{page}: tpulm {inline}"
            command = command.commands[words.pop(0)]
        known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
        known |= {"-h", "--help", "--", "--install-completion"}
        given = {word.split("=")[0] for word in words[: words.index("--") if "--" in words else None] if word[0] == "-"}
        assert hasattr(command, "commands") or given <= known, f"{page}: tpulm {inline}"


# What takes minutes on the page takes seconds here; the tutorials keep their model, in fewer steps.
SHORTENED = {'extends = "laptop-bert"': 'extends = "small.toml"', '"train.steps": 1000': '"train.steps": 6'}
FEWER_STEPS = {"\nsteps = 300 ": "\nsteps = 6 ", "epochs=2": "epochs=1"}
SMALL = """
extends = "laptop-bert"
tokenizer.vocab_size = 60
data.sequence_length = 32
model = {num_layers = 1, hidden_size = 32, max_positions = 32}
train = {steps = 12, batch_size = 8, evaluate_every_steps = 6, optimizer.warmup_steps = 2}
"""
SESSION = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    place, code = json.loads(line)
    exec(compile(code, place, "exec"), names)
    print("executed", place, flush=True)
"""
EXECUTED = [page for page in PAGES if any(block.is_executed for block in blocks_of(page))]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files and folders that pages speak of, small: a corpus, a run of it, labelled texts, vocabularies."""
    folder = tmp_path_factory.mktemp("toy")
    for name in ("reviews", "w", "more", "kcbert", "theirs"):
        (folder / name).mkdir()
    corpus = write_corpus(folder / "reviews/reviews.txt.gz")
    lines = gzip.decompress(corpus.read_bytes()).decode().splitlines()
    shutil.copy(corpus, folder / "new.txt.gz")
    (folder / "new.txt").write_text("\n".join(lines[:50]))
    (folder / "more/more.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in lines[:20]).encode())
    )
    (folder / "small.toml").write_text(SMALL)
    (folder / "my.toml").write_text('extends = "small.toml"\n[corpus]\nsources = ["reviews/*.txt.gz"]\n')
    (folder / "ko.toml").write_text('extends = "my.toml"\nname = "korean-reviews"\n')
    for part, texts in (("train", lines[:60]), ("dev", lines[60:80]), ("test", lines[80:100])):
        labels = ["pos" if "cat" in text.split() or i % 2 else "neg" for i, text in enumerate(texts)]
        rows = "".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True))
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + rows)
        (folder / f"{part}.tsv.gz").write_bytes(gzip.compress(("document\tlabel\n" + rows).encode()))
        tagged = "\n\n".join("\n".join(f"{w} {'B-PET' if w == 'cat' else 'O'}" for w in text[:-1].split()) for text in texts)
        (folder / f"{part}.conll").write_text(tagged + "\n")
    (folder / "new.tsv").write_text("document\n" + "\n".join(lines[:9]) + "\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys([*WORDS, *ascii_lowercase])]
    for name in ("theirs", "kcbert"):
        (folder / name / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


@pytest.fixture(scope="module")
def pretrained(toy: Path) -> Path:
    """`toy` with finished work folders and exports."""
    assert run_process("run", "ko.toml", "--workdir", "w/ko", cwd=toy, environment=environment(toy)).returncode == 0
    for name in ("w/a", "w/b", "w/c"):
        shutil.copytree(toy / "w/ko", toy / name)
    for name in ("w/export", "theirs", "bert", "some-hugging-face-folder"):
        shutil.copytree(toy / "w/ko/export", toy / name, dirs_exist_ok=True)
    shutil.copy(toy / "kcbert/vocab.txt", toy / "ko-vocab.txt")
    return toy


def environment(folder: Path) -> dict[str, str]:
    """A user's, with this environment's programs; pip, which would install, and browsers do nothing."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    (programs / "pip").write_text("#!/bin/sh\n")
    (programs / "pip").chmod(0o755)
    strict = {"JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION"}
    kept = {name: value for name, value in os.environ.items() if name not in strict}
    return kept | {
        "XLA_FLAGS": compiled.flags(),
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROWSER": "true",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTED)
def test_every_block_runs(page: str, request: pytest.FixtureRequest, tmp_path: Path):
    """In order, in one folder, the blocks of Python in one session."""
    folder = tmp_path / "page"
    is_tutorial = "tutorial" in page
    assert not is_tutorial or all(long in PAGES[page] for long in FEWER_STEPS)
    if is_tutorial:
        folder.mkdir()
    else:
        shutil.copytree(request.getfixturevalue("toy" if page in {"README.md", "docs/index.md"} else "pretrained"), folder)
    settings: Any = {"cwd": folder, "env": environment(folder), "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings
    ) as session:
        assert session.stdin and session.stdout
        for block in blocks_of(page):
            if not block.is_executed:
                continue
            code = block.code
            for long, short in (FEWER_STEPS if is_tutorial else SHORTENED).items():
                code = code.replace(long, short)
            if block.title:
                (folder / block.title).write_text(code)
            elif block.language == "python":
                session.stdin.write(json.dumps([block.place, code]) + "\n")
                session.stdin.flush()
                said: list[str] = []
                while not said or said[-1].strip() != f"executed {block.place}":
                    said.append(session.stdout.readline())
                    assert said[-1], f"{block.place}\n{''.join(said)}"
            else:
                done = subprocess.run(["bash", "-euo", "pipefail"], input=code, capture_output=True, **settings)
                assert done.returncode == 0, f"{block.place}\n{code}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        session.stdin.close()


def test_every_block_has_its_level_and_every_table_a_header():
    """`-s` prints how many blocks of each page are executed and parsed, and why not all are executed."""
    print()
    for page in PAGES:
        assert not re.search(r"^\|( *\|)+$", PAGES[page], re.MULTILINE), f"{page}: a table without a header"
        blocks = [block for block in blocks_of(page) if block.language not in OUTPUT]
        executed = sum(block.is_executed for block in blocks)
        reasons = {block.reason or "a part of a file" for block in blocks if not block.is_executed}
        if blocks:
            print(f"{page}: {executed} executed, {len(blocks) - executed} parsed", *sorted(reasons), sep="; ")
        unmarked = re.findall(r"^```", PAGES[page], re.MULTILINE)
        assert len(unmarked) == 2 * len(blocks_of(page)), f"{page}: a block that this test does not see"
        stale = [block.place for block in blocks if block.reason and block.language in {"toml", "json"} and not block.title]
        assert stale == [] or WHOLE_PAGE.search(PAGES[page]), f"{stale}: it is not executed anyhow; leave the mark out"


def test_the_first_page_lists_the_others():
    """All of the navigation that lie beside it."""
    pages = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert set(pages) - {"index.md"} <= set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["docs/index.md"]))


def test_the_site_needs_neither_a_server_nor_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From file:// addresses the search reads search_index.js, in a worker of iframe-worker.js."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    pages, site = tmp_path / "docs", tmp_path / "site"
    pages.mkdir()
    (pages / "index.md").write_text("# Title\n\n```sh\ntpulm\n```\n")
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(site), nav=None))
    page = (site / "index.html").read_text()
    scripts = re.findall(r'<script src="([^"]+)"', page)
    assert "iframe-worker.js" in scripts and all((site / name).is_file() for name in scripts)
    assert (site / "search" / "search_index.js").is_file()
    assert 'class="language-sh highlight"' in page  # whose lines extra.css folds
