"""The hello pipeline as processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import regenerate
from torchx_kfp import local
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker


@pytest.mark.parametrize("message", ["Hello, pipelines!", "", "-n", "'\"`id` $(id) \\n %s {{$}} ${HOME}\n\tGrüße ☃"])
def test_the_second_stage_reads_what_the_first_recorded(message: str, tmp_path: Path) -> None:
    pipeline = regenerate.load_pipeline(regenerate.REPOSITORY / "pipelines" / "hello.py")
    done = local.run(
        pipeline,
        {"tracker_base": str(tmp_path / "tracker"), "message": message},
        output_dir=tmp_path / "logs",
        watch=Watch(),
    )
    done.raise_for_failure()
    stages = {stage.name: stage for stage in done.stages}
    first, published, second = (stages[name] for name in ("first", "publish-first", "second"))
    assert published.outputs == {"bytes": len(message.encode()) + 1, "run_id": first.run_id}
    assert published.artifacts["metrics"].metadata == {"bytes": len(message.encode()) + 1}

    tracker = FsspecResultTracker(str(tmp_path / "tracker"))
    assert tracker[str(first.run_id)] == {"bytes": len(message.encode()) + 1}
    said = f'{{"bytes": {len(message.encode()) + 1}}}\nSo much the first stage said.\n'
    assert tracker[str(second.run_id)] == {"bytes": len(said)}
    assert first.log_file is not None
    assert first.log_file.read_text(encoding="utf-8") == f"{message}\n"
    assert second.log_file is not None
    assert second.log_file.read_text(encoding="utf-8") == said
