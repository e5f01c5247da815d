"""From a run file and overrides to a configuration: merging, paths, typing, and errors that name file, key and fix."""

from __future__ import annotations

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
    def test_chains_go_through_files_of_several_folders_and_keep_the_rest(self, tmp_path: Path):
        write(tmp_path, "base/first.toml", 'extends = "bert-tiny"\n[train]\nsteps = 5\nbatch_size = 8\n')
        write(tmp_path, "middle.toml", 'extends = "base/first.toml"\n[train]\nbatch_size = 16\n')
        last = write(tmp_path, "deep/er/last.toml", 'extends = "../../middle.toml"\n[train]\nseed = 7\n')
        found, base = config.load(last), config.load("bert-tiny")
        assert found.train == base.train.model_copy(update={"steps": 5, "batch_size": 16, "seed": 7})
        assert found.model == base.model

    def test_lists_are_replaced_not_joined(self, tmp_path: Path):
        write(tmp_path, "a.toml", '[corpus]\nsources = ["x.txt", "y.txt"]\n')
        last = write(tmp_path, "b.toml", 'extends = "a.toml"\n[corpus]\nsources = "z.txt"\n')
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
        assert "circle" in message_of(write(tmp_path, "self.toml", 'extends = "self.toml"\n'))

    def test_a_base_that_is_none(self, tmp_path: Path):
        messages = {'"nowhere.toml"': "run.toml extends it", "3": "extends must be", '"laptop_bert"': "'laptop-bert'?"}
        for base, said in messages.items():
            assert said in message_of(write(tmp_path, "run.toml", f"extends = {base}\n"))


class TestPaths:
    def test_paths_are_relative_to_their_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """Each of a chain to its own."""
        sources = '["text/*.gz", {path = "../more.jsonl", weight = 2.0}, "/data/a.txt", "~/b.txt", "gs://bucket/c.txt"]'
        base = write(tmp_path, "runs/run.toml", f'[corpus]\nsources = {sources}\n[tokenizer]\npath = "vocab.txt"\n')
        path = write(tmp_path, "b.toml", f'extends = "{base}"\n')
        monkeypatch.chdir("/")
        monkeypatch.setenv("HOME", "/users/me")
        run = config.load(path)
        folder = tmp_path.resolve()
        own = [f"{folder}/runs/text/*.gz", f"{folder}/more.jsonl"]
        found = [source.path for source in run.corpus.sources]
        assert found == [*own, "/data/a.txt", "/users/me/b.txt", "gs://bucket/c.txt"]
        assert [source.weight for source in run.corpus.sources] == [1.0, 2.0, 1.0, 1.0, 1.0]
        assert run.tokenizer.path == str(folder / "runs" / "vocab.txt")

    def test_overrides_are_relative_to_here_however_a_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "there" / "below").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
        monkeypatch.chdir(tmp_path)
        sources = ["./x/../ㅎ/*.txt", "./~.txt"]
        settings = {"tokenizer.path": "link/../v.txt", "train.start_from": "below/..//m/", "corpus.sources": sources}
        run = config.load("bert-tiny", settings)
        names = {name: os.path.realpath(name) for name in ("link/../v.txt", "m", "ㅎ/*.txt", "./~.txt")}
        found = [run.tokenizer.path, run.train.start_from, *(source.path for source in run.corpus.sources)]
        assert found == list(names.values())
        assert config.load("bert-tiny", ["tokenizer.path=link/../v.txt"]).tokenizer.path == found[0]
        older = config.canonical_json(run).replace(f'"{names["m"]}"', f'"{tmp_path}/x/../m"')  # recorded so in 0.1
        assert older != config.canonical_json(run) and config.from_json(older) == run

    def test_run_json_is_utf8(self):
        with pytest.raises(ConfigError, match=r"caf\\xe9\.txt"):
            config.load("bert-tiny", {"corpus.sources": "/caf\udce9.txt"})


class TestOverrides:
    def test_values_are_read_as_toml(self):
        texts = ["train.steps=1_000", "train.optimizer.learning_rate=5e-4", "tokenizer.lowercase=true", "name = my-run"]
        texts += ['description="a = b"', "model.norm_position=pre", "hardware.data=2", "hardware.unroll=auto"]
        values = {"train.steps": 1000, "train.optimizer.learning_rate": 5e-4, "tokenizer.lowercase": True, "name": "my-run"}
        values |= {"description": "a = b", "model.norm_position": "pre", "hardware.data": 2, "hardware.unroll": "auto"}
        run = config.load("bert-tiny", texts)
        assert run == config.load("bert-tiny", values)
        assert (run.train.steps, run.name, run.description) == (1000, "my-run", "a = b")
        assert config.load("bert-mini", ["name=" + "[" * 5_000]).name == "[" * 5_000

    def test_a_table_changes_what_it_names_alone_as_in_a_file(self, tmp_path: Path):
        file = write(tmp_path, "run.toml", 'extends = "laptop-bert"\n[model]\nnum_layers = 4\n')
        for overrides in (["model={num_layers=4}"], {"model": {"num_layers": 4}}, {"model.num_layers": 4}):
            assert config.load("laptop-bert", overrides).model == config.load(file).model

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


class TestErrors:
    def test_a_wrong_setting_is_shown_with_what_was_expected(self):
        for overrides, said in (
            (["train.steps"], "name.of.field=value"),
            (["=5"], "name.of.field=value"),
            (["train.steps=5", "seed=1", " train.steps = 6"], "train.steps is set twice"),
            (["train.steps.more=5"], "'steps' is a value"),
            (["train.stpes=5"], "'train.stpes'. Did you mean 'train.steps'?"),
            (["model.zzz=1"], "Known: architecture, num_layers"),
            (['corpus.sources=[{path="x", weigth=2}]'], "'corpus.sources.0.weigth'. Did you mean 'corpus.sources.0.weight'?"),
            (["train.warmup_steps=5"], "Did you mean 'train.optimizer.warmup_steps'?"),
            (["train.steps=0"], "(given: 0)"),
            (["train.steps=10\nseed = 3"], "train.steps"),
            (["train.steps=10 # of 20"], "given: '10 # of 20'"),
            (["train.steps=10, seed = 3"], "given: '10, seed = 3'"),
            (["data.rows=sideways"], "'segments', 'packed' or 'causal' (given: 'sideways')"),
            (["train.optimizer.learning_rate=inf"], "train.optimizer.learning_rate"),
            (["model.hidden_size=100"], "hidden_size 100 is not a multiple of num_heads 12"),
            (["model.rotary_scaling.factor=2.0"], "rotary_scaling scales rotary positions"),
            (["data.sequence_length=1024"], "max_positions 512"),
            (['corpus.sources=[{format="jsonl"}]'], "path is missing"),
            (["data.rows=packed"], "next_sentence needs rows = 'segments'"),
            (["data.split_sentences=true"], "split_sentences"),
        ):
            assert said in message_of("bert-base", overrides)

    def test_all_mistakes_are_told_at_once_and_what_is_known_of_a_table_once(self):
        found = message_of("bert-tiny", ["train.steps=0", "train.sed=1", "model.qqqq=1", "model.zzzz=2", "data.rows=x"])
        assert found.count("\n  ") == 5
        assert [line.count("Known: ") for line in found.splitlines() if "unknown setting 'model" in line] == [1, 0]

    def test_a_file_in_another_encoding(self, tmp_path: Path):
        path = tmp_path / "run.toml"
        path.write_bytes('name = "한국어"\n'.encode("euc-kr"))
        assert "run.toml" in message_of(path) and "not UTF-8 at byte 8" in message_of(path)
        for encoding in ("utf-8-sig", "utf-16"):  # a byte order mark is fine
            path.write_bytes('name = "한국어"\r\n'.encode(encoding))
            assert config.load(path).name == "한국어"

    @pytest.mark.parametrize("text", ["[1, 2]", "3", '"bert"', '{"name": ', '{"train": ' + "[" * 5_000 + "]" * 5_000 + "}"])
    def test_json_that_is_no_object(self, tmp_path: Path, text: str):
        assert "run.json" in message_of(write(tmp_path, "run.json", text))
        with pytest.raises(ConfigError):
            config.from_json(text)


class TestCanonicalForm:
    def test_a_run_json_is_a_run_file(self, tmp_path: Path):
        run = config.load("bert-tiny", ['corpus.sources=["/data/한국어.txt"]'])
        path = write(tmp_path, "run.json", config.canonical_json(run))
        assert config.load(path) == run
        assert "한국어" in path.read_text(encoding="utf-8")

    def test_differences_are_told_field_by_field(self):
        ours = config.load("bert-tiny")
        theirs = config.load("bert-tiny", ["train.steps=7", "tokenizer.path=/v.txt", "hardware.fsdp=4", 'language="ko"'])
        assert [str(change) for change in config.differences(ours, theirs)] == [
            'tokenizer.path: (none) -> "/v.txt"',
            "train.steps: 1000000 -> 7",
        ]
        assert config.differences(ours, ours) == []


def test_what_a_run_file_must_not_hold(tmp_path: Path):
    for text, message in (
        ('name = "x"\n[train]\nsteps = = 5\n', "line 3"),
        ('extends = "\\u0000"', r"extends must be the name of a recipe or a file, not '\x00'"),
        ('corpus.sources = ["a\\u0000b"]', r"'a\x00b' cannot be a path"),
        ('corpus.sources = ["~nobody-of-this-name/x"]', "there is no such user"),
        ("train = " + "[" * 5_000 + "]" * 5_000, "brackets are nested more than 100 deep"),
        (".".join("a" * 2_000) + " = 1", "a key has more than 100 parts"),
        (f'extends = "{"x" * 300}"', "is neither a file nor a recipe"),
        ("\n".join(f"a{number} = 1" for number in range(25)), "and 15 more"),
        ("train.steps = true", "train.steps: a number is expected, not true or false (given: True)"),
        ("train.spike_factor = inf", "train.spike_factor: Input should be a finite number (given: inf)"),
        ("train = 5", "train: Input should be a group of settings (given: 5)"),
        ("corpus.cleaning.languages = 5", "corpus.cleaning.languages: Input should be a list (given: 5)"),
    ):
        found = message_of(write(tmp_path, "run.toml", text))
        assert message in found and "run.toml" in found


class TestShortenedRuns:
    @pytest.mark.parametrize("recipe", config.list_recipes())
    def test_every_recipe_takes_fewer_steps(self, recipe: str, tmp_path: Path):
        file = write(tmp_path, "run.toml", f'extends = "{recipe}"\n[train]\nsteps = 100\n')
        last = write(tmp_path, "last.toml", 'extends = "run.toml"\n')
        expected = config.load(recipe, ["train.steps=100"])
        optimizer = expected.train.optimizer
        assert optimizer.warmup(100) + (optimizer.decay(100) if optimizer.schedule == "wsd" else 0) <= 50
        for reference in (file, last):
            assert config.load(reference).train == expected.train

    def test_what_follows_is_said_and_what_is_set_stays(self, tmp_path: Path):
        notes = list[str]()
        optimizer = config.load("modern-base", ["train.steps=1250"], note=notes.append).train.optimizer
        assert (optimizer.warmup_steps, optimizer.decay_steps) == (20, 125)  # 2,000 and 12,500 of 125,000
        assert notes[0].startswith("train.optimizer.warmup_steps = 20, ") and "2,000 for 125,000 steps" in notes[0]
        notes.clear()
        config.load("laptop-modern", ["train.steps=1200"], note=notes.append)  # linear: its inherited decay_steps has no effect
        assert [note.split()[0] for note in notes] == ["train.optimizer.warmup_steps"]
        said = message_of("laptop-electra", ["train.steps=100", "train.optimizer.warmup_steps=300"])
        assert "warmup_steps 300 exceeds train.steps 100" in said
        wsd = {"schedule": "wsd", "decay_steps": 90, "warmup_steps": 20}
        said = message_of("laptop-lm", ["train.steps=100", *(f"train.optimizer.{name}={value}" for name, value in wsd.items())])
        assert "decay_steps 90 and warmup_steps 20 together exceed train.steps 100" in said
        said = message_of(
            "bert-tiny",
            [
                "train.steps=1000",
                *(f"train.optimizer.{one}" for one in ("schedule=wsd", "decay_steps=950", "warmup_steps=none")),
            ],
        )
        assert "decay_steps 950 and warmup_steps 100 together" in said  # a tenth of the steps, where none are given
        file = write(tmp_path, "run.toml", 'extends = "laptop-bert"\n[train]\nsteps = 500\noptimizer.warmup_steps = 100\n')
        assert config.load(file).train.optimizer.warmup_steps == 100
        assert config.load("laptop-bert", ["train.steps=12000"]).train.optimizer.warmup_steps == 50  # longer: as it is

    def test_files_that_extend_one_another_shorten_once(self, tmp_path: Path):
        write(tmp_path, "a.toml", 'extends = "modern-base"\n[train]\nsteps = 100\n')
        file = write(tmp_path, "b.toml", 'extends = "a.toml"\n[train]\nsteps = 12500\n')
        notes = list[str]()
        optimizer = config.load(file, ["train.steps=6250"], note=notes.append).train.optimizer
        assert (optimizer.warmup_steps, optimizer.decay_steps) == (100, 625)  # shares of the recipe's 125,000 steps
        assert len(notes) == 2 and all("modern-base has" in note for note in notes)

    def test_a_country_or_a_name_given_for_a_language_is_noted(self):
        said = {"kr": "Did you mean 'ko'?", "JP": "Did you mean 'ja'?", "cn": "Did you mean 'zh'?"}
        said |= dict.fromkeys(("korean", "한국어"), "is no code") | dict.fromkeys(("ko", "uk", "sv-SE", "ko-KR", "gsw"))
        for language, expected in said.items():
            notes = list[str]()
            config.load("bert-tiny", [f"language={language}"], note=notes.append)
            assert len(notes) == (expected is not None) and all(str(expected) in note for note in notes), language
