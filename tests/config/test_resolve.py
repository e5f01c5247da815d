"""From a run file and overrides to a configuration: merging, paths, typing, and errors that name file, key and fix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tpulm import config
from tpulm.errors import ConfigError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def message_of(reference: str | Path, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        config.load(reference, overrides or [])
    return str(raised.value)


class TestExtends:
    def test_a_file_changes_what_it_names_and_keeps_the_rest(self, tmp_path: Path):
        path = write(tmp_path, "run.toml", 'extends = "bert-mini"\nname = "mine"\n[train]\nsteps = 600\n')
        run, base = config.load(path), config.load("bert-mini")
        assert run.train.steps == 600
        assert run.train.batch_size == base.train.batch_size
        assert run.train.optimizer == base.train.optimizer
        assert run.model == base.model

    def test_chains_go_through_files_of_several_folders(self, tmp_path: Path):
        write(tmp_path, "base/first.toml", 'extends = "bert-tiny"\n[train]\nsteps = 5\nbatch_size = 8\n')
        write(tmp_path, "middle.toml", 'extends = "base/first.toml"\n[train]\nbatch_size = 16\n')
        last = write(tmp_path, "deep/er/last.toml", 'extends = "../../middle.toml"\n[train]\nseed = 7\n')
        train = config.load(last).train
        assert (train.steps, train.batch_size, train.seed) == (5, 16, 7)

    def test_lists_are_replaced_not_joined(self, tmp_path: Path):
        write(tmp_path, "a.toml", '[corpus]\nsources = ["x.txt", "y.txt"]\n')
        last = write(tmp_path, "b.toml", 'extends = "a.toml"\n[corpus]\nsources = ["z.txt"]\n')
        assert [source.path for source in config.load(last).corpus.sources] == [str(tmp_path / "z.txt")]

    def test_what_is_true_of_one_run_is_not_inherited(self, tmp_path: Path):
        examples = Path(__file__).parents[2] / "examples"
        english = write(tmp_path, "en.toml", f'extends = "{examples / "electra-ko.toml"}"\n[corpus]\nsources = ["en.txt"]\n')
        for reference in (english, write(tmp_path, "mini.toml", 'extends = "bert-mini"\n[data]\nnext_sentence = false\n')):
            assert (config.load(reference).description, config.load(reference).language) == ("", None)
        assert config.load("bert-mini").description == "BERT, 4 layers of 256"
        assert config.load(examples / "electra-ko.toml").language == "ko"

    def test_a_circle_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        write(tmp_path, "a.toml", 'extends = "b.toml"\n')
        write(tmp_path, "b.toml", 'extends = "a.toml"\n')
        monkeypatch.chdir(tmp_path)
        found = message_of("a.toml")
        a, b = tmp_path.resolve() / "a.toml", tmp_path.resolve() / "b.toml"
        assert f"circle: {a} -> {b} -> {a}" in found

    def test_a_missing_base_names_both_files(self, tmp_path: Path):
        path = write(tmp_path, "run.toml", 'extends = "nowhere.toml"\n')
        found = message_of(path)
        assert "nowhere.toml' is neither a file nor a recipe" in found
        assert "run.toml extends it" in found

    def test_a_misspelt_recipe_is_suggested(self):
        assert "Did you mean 'bert-base'?" in message_of("bert-bse")

    def test_a_file_that_extends_itself(self, tmp_path: Path):
        assert "circle" in message_of(write(tmp_path, "self.toml", 'extends = "self.toml"\n'))

    def test_extends_of_the_wrong_type(self, tmp_path: Path):
        assert "extends must be the name" in message_of(write(tmp_path, "run.toml", "extends = 3\n"))


class TestPaths:
    def test_paths_are_relative_to_their_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = write(
            tmp_path,
            "runs/run.toml",
            '[corpus]\nsources = ["text/*.gz", {path = "../more.jsonl", weight = 2.0}]\n[tokenizer]\npath = "vocab.txt"\n',
        )
        monkeypatch.chdir("/")
        run = config.load(path)
        folder = tmp_path.resolve() / "runs"
        assert [source.path for source in run.corpus.sources] == [
            str(folder / "text/*.gz"),
            str(tmp_path.resolve() / "more.jsonl"),
        ]
        assert run.tokenizer.path == str(folder / "vocab.txt")

    def test_each_file_of_a_chain_has_its_own_folder(self, tmp_path: Path):
        write(tmp_path, "base/a.toml", '[corpus]\nsources = "text.txt"\n')
        last = write(tmp_path, "b.toml", 'extends = "base/a.toml"\n')
        assert config.load(last).corpus.sources[0].path == str(tmp_path.resolve() / "base" / "text.txt")

    def test_absolute_paths_homes_and_addresses_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HOME", "/users/me")
        path = write(tmp_path, "run.toml", '[corpus]\nsources = ["/data/a.txt", "~/b.txt", "gs://bucket/c.txt"]\n')
        assert [source.path for source in config.load(path).corpus.sources] == [
            "/data/a.txt",
            "/users/me/b.txt",
            "gs://bucket/c.txt",
        ]

    def test_overrides_are_relative_to_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        run = config.load("bert-tiny", ['corpus.sources=["a.txt"]', "tokenizer.path=vocab.txt"])
        assert run.corpus.sources[0].path == str(Path.cwd() / "a.txt")
        assert run.tokenizer.path == str(Path.cwd() / "vocab.txt")

    def test_however_a_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "there" / "below").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
        monkeypatch.chdir(tmp_path)
        settings = {
            "tokenizer.path": "link/../v.txt",
            "train.start_from": "below/..//m/",
            "corpus.sources": ["./x/../ㅎ/*.txt", "./~.txt"],
        }
        run = config.load("bert-tiny", settings)
        names = {name: os.path.realpath(name) for name in ("link/../v.txt", "m", "ㅎ/*.txt", "./~.txt")}
        found = [run.tokenizer.path, run.train.start_from, *(source.path for source in run.corpus.sources)]
        assert found == list(names.values())
        older = config.canonical_json(run).replace(f'"{names["m"]}"', f'"{tmp_path}/x/../m"')  # recorded so in 0.1
        assert older != config.canonical_json(run) and config.from_json(older) == run

    def test_run_json_is_utf8(self):
        with pytest.raises(ConfigError, match=r'"path": "\$\'/caf\\xe9.txt\'" is not UTF-8'):
            config.load("bert-tiny", {"corpus.sources": "/caf\udce9.txt"})

    def test_a_source_without_a_path_stays_without(self):
        source = config.load("quickstart").corpus.sources[0]
        assert (source.format, source.path) == ("python", "")


class TestOverrides:
    def test_values_are_read_as_toml(self):
        run = config.load(
            "bert-tiny",
            [
                "train.steps=1_000",
                "train.optimizer.learning_rate=5e-4",
                "tokenizer.lowercase=true",
                "name = my-run",
                'description="a = b"',
                "model.norm_position=pre",
                "hardware.data=2",
                "hardware.unroll=auto",
            ],
        )
        assert run.train.steps == 1000
        assert run.train.optimizer.learning_rate == 5e-4
        assert run.tokenizer.lowercase is True
        assert (run.name, run.description) == ("my-run", "a = b")
        assert run.model.norm_position == "pre"
        assert (run.hardware.data, run.hardware.unroll) == (2, "auto")

    def test_a_mapping_is_as_good(self):
        assert config.load("bert-tiny", {"train.steps": 10}) == config.load("bert-tiny", ["train.steps=10"])

    def test_overrides_win_over_the_file(self, tmp_path: Path):
        path = write(tmp_path, "run.toml", "[train]\nsteps = 5\nseed = 1\n")
        train = config.load(path, ["train.steps=50000"]).train
        assert (train.steps, train.seed) == (50000, 1)

    def test_none_unsets_what_may_be_unset(self, tmp_path: Path):
        train = config.load("bert-tiny", ["train.optimizer.clip_norm=none", "train.checkpoint.every_minutes=none"]).train
        assert train.optimizer.clip_norm is None
        assert train.checkpoint.every_minutes is None
        path = write(tmp_path, "run.toml", 'language = "none"\n[train]\nspike_factor = "none"\n')
        assert config.load(path).train.spike_factor is None

    def test_none_is_a_value_where_it_is_a_choice(self):
        assert config.load("bert-tiny", ["hardware.remat=none"]).hardware.remat == "none"
        assert config.load("bert-tiny", ["corpus.cleaning.unicode_form=none"]).corpus.cleaning.unicode_form == "none"
        assert "train.steps" in message_of("bert-tiny", ["train.steps=none"])

    @pytest.mark.parametrize("override", ["train.steps", "=5", " = 5"])
    def test_one_that_is_no_assignment(self, override: str):
        assert "--set name.of.field=value" in message_of("bert-tiny", [override])

    def test_one_setting_set_twice(self):
        overrides = ["train.steps=5", "seed=1", " train.steps = 6"]
        assert "train.steps is set twice, to 5 and to 6; set it once" in message_of("bert-tiny", overrides)

    def test_one_that_goes_through_a_value(self):
        assert "'steps' is a value, not a group" in message_of("bert-tiny", ["train.steps.more=5"])


class TestErrors:
    @pytest.mark.parametrize(
        ("override", "hint"),
        [
            ("train.stpes=5", "unknown setting 'train.stpes'. Did you mean 'steps'?"),
            ("trian.steps=5", "unknown setting 'trian'. Did you mean 'train'?"),
            ("train.optimizer.learning_rat=1", "Did you mean 'learning_rate'?"),
            ("model.zzz=1", "Known: architecture, num_layers"),
            ('corpus.sources=[{path="x", weigth=2}]', "unknown setting 'corpus.sources.0.weigth'. Did you mean 'weight'?"),
        ],
    )
    def test_an_unknown_setting_gets_the_nearest_name(self, override: str, hint: str):
        assert hint in message_of("bert-tiny", [override])

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("train.steps=many", "train.steps: Input should be a valid integer"),
            ("train.steps=0", "train.steps: Input should be greater than or equal to 1 (given: 0)"),
            ("tokenizer.vocab_size=0", "tokenizer.vocab_size: Input should be greater than or equal to 1 (given: 0)"),
            ("data.rows=sideways", "data.rows: Input should be 'segments', 'packed' or 'causal' (given: 'sideways')"),
            ("train.optimizer.learning_rate=inf", "train.optimizer.learning_rate"),
            ("model.hidden_size=100", "hidden_size 100 is not a multiple of num_heads 12"),
            ("data.sequence_length=1024", "data.sequence_length 1024 exceeds model.max_positions 512"),
            ("train.optimizer.warmup_steps=2000000", "warmup_steps 2000000 exceeds train.steps 1000000"),
            ('corpus.sources=[{format="jsonl"}]', "path is missing"),
            ("data.rows=packed", "next_sentence needs rows = 'segments', not 'packed'"),
        ],
    )
    def test_a_wrong_value_is_shown_with_what_was_expected(self, override: str, expected: str):
        assert expected in message_of("bert-base", [override])

    def test_all_mistakes_are_told_at_once(self):
        found = message_of("bert-tiny", ["train.steps=0", "train.sed=1", "data.rows=x"])
        assert found.count("\n  ") == 3

    def test_bad_toml_names_file_and_line(self, tmp_path: Path):
        path = write(tmp_path, "run.toml", 'name = "x"\n[train]\nsteps = = 5\n')
        found = message_of(path)
        assert "run.toml" in found and "line 3" in found

    def test_a_file_in_another_encoding(self, tmp_path: Path):
        path = tmp_path / "run.toml"
        path.write_bytes('name = "한국어"\n'.encode("euc-kr"))
        assert "run.toml" in message_of(path) and "not UTF-8 at byte 8" in message_of(path)

    def test_a_byte_order_mark_is_fine(self, tmp_path: Path):
        path = tmp_path / "run.toml"
        for encoding in ("utf-8-sig", "utf-16"):
            path.write_bytes('name = "한국어"\r\n'.encode(encoding))
            assert config.load(path).name == "한국어"

    @pytest.mark.parametrize("text", ["[1, 2]", "3", '"bert"'])
    def test_json_that_is_no_object(self, tmp_path: Path, text: str):
        assert "a run is an object of settings" in message_of(write(tmp_path, "run.json", text))
        with pytest.raises(ConfigError):
            config.from_json(text)

    def test_a_torn_run_json(self):
        with pytest.raises(ConfigError, match=r"run\.json is not valid JSON"):
            config.from_json('{"name": ')


class TestCanonicalForm:
    def test_a_run_json_is_a_run_file(self, tmp_path: Path):
        run = config.load("bert-tiny", ['corpus.sources=["/data/한국어.txt"]'])
        path = write(tmp_path, "run.json", config.canonical_json(run))
        assert config.load(path) == run
        assert "한국어" in path.read_text(encoding="utf-8")

    def test_it_holds_every_field_in_order(self):
        values = json.loads(config.canonical_json(config.RunConfig()))
        assert list(values) == sorted(config.RunConfig.model_fields)
        assert list(values["train"]["optimizer"]) == sorted(config.OptimizerConfig.model_fields)

    def test_differences_are_told_field_by_field(self):
        ours = config.load("bert-tiny")
        theirs = config.load("bert-tiny", ["train.steps=7", "tokenizer.path=/v.txt", "hardware.fsdp=4", 'language="ko"'])
        assert [str(change) for change in config.differences(ours, theirs)] == [
            'tokenizer.path: (none) -> "/v.txt"',
            "train.steps: 1000000 -> 7",
        ]
        assert config.differences(ours, ours) == []

    def test_a_configuration_is_frozen(self):
        with pytest.raises(ValueError, match="frozen"):
            config.load("bert-tiny").train.steps = 5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "\\u0000"', r"extends must be the name of a recipe or a file, not '\x00'"),
        ('corpus.sources = ["a\\u0000b"]', r"'a\x00b' cannot be a path"),
        ('corpus.sources = ["~nobody-of-this-name/x"]', "there is no such user"),
        ("train = " + "[" * 5_000 + "]" * 5_000, "brackets are nested more than 100 deep"),
        (".".join("a" * 2_000) + " = 1", "a key has more than 100 parts"),
        (f'extends = "{"x" * 300}"', "is neither a file nor a recipe"),
        ("\n".join(f"a{number} = 1" for number in range(25)), "and 15 more"),
        ("train.steps = true", "train.steps: a number is expected, not true or false (given: True)"),
        ("train.optimizer.weight_decay = false", "train.optimizer.weight_decay: a number is expected"),
        ("train.spike_factor = inf", "train.spike_factor: Input should be a finite number (given: inf)"),
        ("train = 5", "train: Input should be a group of settings (given: 5)"),
        ("corpus.cleaning.languages = 5", "corpus.cleaning.languages: Input should be a list (given: 5)"),
    ],
)
def test_what_a_run_file_must_not_hold(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, "run.toml", text)
    found = message_of(path)
    assert message in found and "run.toml" in found


def test_what_run_json_must_not_hold(tmp_path: Path):
    nested = '{"train": ' + "[" * 5_000 + "]" * 5_000 + "}"
    assert "run.json: brackets are nested" in message_of(write(tmp_path, "run.json", nested))
    with pytest.raises(ConfigError, match=r"run\.json"):
        config.from_json(nested, "w/run.json")


def test_an_override_may_be_any_text():
    assert config.load("bert-mini", ["name=" + "[" * 5_000]).name == "[" * 5_000


def test_what_is_known_of_a_table_is_told_once():
    lines = message_of("bert-tiny", ["model.qqqq=1", "model.zzzz=2"]).splitlines()
    assert [line.count("Known: ") for line in lines if "unknown setting" in line] == [1, 0]
