"""cloud.toml, and the options over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cloud_rig import job_of

from tpulm.cloud import launch
from tpulm.cloud.job import intended
from tpulm.cloud.launch import check_budget, check_extras, extras_of, request_for
from tpulm.cloud.settings import CloudSettings, load, region_of
from tpulm.config import RunConfig, TrackConfig
from tpulm.errors import CloudRefused, ConfigError, MissingExtra
from tpulm.storage import as_path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "cloud.toml"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder without a cloud.toml, and an environment without a login."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-environment")
    return tmp_path


def test_what_nobody_says():
    settings = load(accelerator="v3-8")
    assert settings.project == "from-environment" and settings.bucket == ""
    assert settings.service_account == "tpulm-worker@from-environment.iam.gserviceaccount.com"
    assert settings.zones == ("us-central1-a", "us-central1-b", "europe-west4-a")
    assert settings.spot and not settings.queued
    assert load().zones == ()
    of_a_domain = CloudSettings(project="example.com:my-project")
    assert of_a_domain.service_account == "tpulm-worker@my-project.example.com.iam.gserviceaccount.com"


def test_a_file_with_options_over_it(nowhere: Path):
    (nowhere / "cloud.toml").write_text(
        'project = "my-project"\nbucket = "gs://runs/"\nzones = "us-west4-a"\n'
        'accelerator = "v5litepod-8"\nspot = false\nbudget = 100\n[secrets]\nTOKEN = "hub"\nFILE = "gs://runs/secret.txt"\n'
    )
    settings = load()
    assert (settings.project, settings.bucket, settings.zones) == ("my-project", "runs", ("us-west4-a",))
    assert settings.secret_names == ("hub",)
    assert settings.budget == 100
    over = load("cloud.toml", spot=True, zones=("us-west1-c", "us-west1-c"), project=None, dollars_per_hour=0)
    assert (over.project, over.spot, over.zones, over.dollars_per_hour) == ("my-project", True, ("us-west1-c",), 0.0)


def test_the_example_is_right():
    settings = load(EXAMPLE, require=("bucket", "accelerator", "zones"))
    text = EXAMPLE.read_text(encoding="utf-8")
    assert settings.project == "my-project"
    page = (REPOSITORY / "docs" / "cloud.md").read_text(encoding="utf-8")
    assert [name for name in CloudSettings.model_fields if name not in text or f"| `{name}` |" not in page] == []
    switched_on = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    Path("whole.toml").write_text(switched_on.replace("# [secrets]", "[secrets]"), encoding="utf-8")
    assert load("whole.toml").secrets


def test_errors_name_the_file_and_the_fix(nowhere: Path):
    for line, said in (
        ('acelerator = "v3-8"', "'accelerator'"),
        ('accelerator = "v3-9"', "Known v3 types: v3-8"),
        ('accelerator = "tpu7x-8"', "tpu7x-8"),
        ('zones = ["us-central1"]', "'us-central1'"),
        ('bucket = "gs://Runs"', "small letters"),
        ('bucket = "my-google-runs"', "'google'"),
        ('bucket = "gs://runs/first"', "alone, gs://runs"),
        ('project = "My Project"', "'My Project'"),
        ("budget = 0", "budget: "),
        ('service_account = "worker"', "e-mail address"),
        ('secrets = {"A-B" = "x"}', "'A-B'"),
        ('secrets = {A = "hf_abc$def"}', "secrets: A"),
        ("spot = maybe", "line 1"),
    ):
        (nowhere / "cloud.toml").write_text(f"{line}\n")
        with pytest.raises(ConfigError) as raised:
            load(bucket="runs") if "spot" in line else load()
        assert "cloud.toml" in str(raised.value) and said in str(raised.value), str(raised.value)
        assert "hf_abc" not in str(raised.value), "a secret's value is not printed"


def test_errors_of_options_do_not_blame_the_file(nowhere: Path):
    (nowhere / "cloud.toml").write_text('bucket = "runs"\n')
    with pytest.raises(ConfigError, match=r"^the options:\n  accelerator: .*'v3'"):
        load(accelerator="v3")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r'bucket = "my-project-tpulm" .*--bucket'):
        load(require=("bucket", "zones"), accelerator="v3-8")
    with pytest.raises(ConfigError, match="zones = "):
        load(require=("zones",))
    with pytest.raises(ConfigError, match=r"other\.toml"):
        load("other.toml")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(ConfigError, match="GOOGLE_CLOUD_PROJECT"):
        load()


def test_patterns_are_expanded():
    settings = load(accelerator="v5litepod-8", zones=("us-east5-*", "us-south1-ai1b"))
    known = ["us-east5-a", "us-east5-b", "us-central1-a", "us-south1-ai1b"]
    assert settings.expanded(known).zones == ("us-east5-a", "us-east5-b", "us-south1-ai1b")
    assert region_of("us-south1-ai1b") == "us-south1"
    with pytest.raises(ConfigError, match="us-east5-"):
        settings.expanded(["us-west4-a"])


def test_a_budget_needs_a_price():
    settings = load(accelerator="v6e-8", zones=("us-east1-d", "us-central1-b"), budget=100)
    with pytest.raises(ConfigError, match=r"us-central1-b.*\[\"us-east1-d\"\]"):
        check_budget(settings, {"us-east1-d": 5.0}, spent=0.0)
    with pytest.raises(CloudRefused, match=r"100\.00"):
        check_budget(settings, {"us-east1-d": 5.0, "us-central1-b": 500.0}, spent=0.0)
    prices = {"us-east1-d": 5.0, "us-central1-b": 50.0}
    check_budget(settings, prices, spent=0.0)
    with pytest.raises(CloudRefused, match=r"\$12\.50"):
        check_budget(settings, prices, spent=87.5)
    check_budget(settings.model_copy(update={"budget": None}), {}, spent=0.0)


def test_trackers_need_their_secrets_and_are_installed_here(monkeypatch: pytest.MonkeyPatch):
    def check(tracker: str, **secrets: str) -> None:
        settings = CloudSettings(project="my-project", secrets=secrets)
        check_extras(RunConfig(track=TrackConfig.model_validate({"to": [tracker]})), settings)

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        check("wandb", MLFLOW_TRACKING_URI="address")
    with pytest.raises(ConfigError, match="trackio"):
        check("trackio", WANDB_API_KEY="key")
    with pytest.raises(MissingExtra, match="mlflow"):
        check("mlflow", MLFLOW_TRACKING_URI="address")
    monkeypatch.setattr(launch, "find_spec", lambda name: object())
    check("mlflow", MLFLOW_TRACKING_URI="address")


def test_what_a_run_needs_besides_is_on_its_vms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = RunConfig.model_validate({"tokenizer": {"morphemes": "mecab"}, "corpus": {"cleaning": {"languages": ["ja"]}}})
    assert extras_of(run) == ("ja", "languages") and extras_of(RunConfig()) == ()
    words = {"data": {"word_boundaries": "kiwi"}, "train": {"objective": {"whole_words": True}}}
    assert extras_of(RunConfig.model_validate(words)) == ("ko",)
    (tmp_path / "tokenizer_config.json").write_text('{"word_tokenizer_type": "mecab"}')
    assert extras_of(RunConfig.model_validate({"tokenizer": {"path": str(tmp_path / "vocab.txt")}})) == ("ja",)
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name == "py3langid" else object())
    with pytest.raises(MissingExtra, match="py3langid"):
        check_extras(run, CloudSettings(project="my-project"))


def test_what_a_node_is_told():
    settings = load(accelerator="v6e-8", zones="us-east1-d", budget=100, hang_minutes=15, queued=True, subnetwork="sub")
    job = intended(job_of(run="r", zones=settings.zones, prices={"us-east1-d": 10.0}), now=1000.0)
    assert job.node is not None
    place: dict[str, Any] = {"workdir": as_path("gs://b/w"), "bundle_path": "gs://b/bundle"}
    request = request_for(job, job.node, settings, **place)
    told = request.metadata
    assert (told["tpulm-project"], told["tpulm-zone"], told["tpulm-node"]) == ("from-environment", "us-east1-d", "r-a1")
    assert (told["tpulm-hang-seconds"], request.subnetwork, request.valid_seconds) == ("900", "sub", 86_400.0)
    ends = float(told["tpulm-valid-until"])
    assert 1000 + 86_400 < ends < 1000 + 86_400 + 36_000, "what it waits costs nothing, and saving is paid for, too"
    assert request_for(job, job.node, load(accelerator="v6e-8"), **place).metadata["tpulm-hang-seconds"] == ""
