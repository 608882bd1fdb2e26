"""The files beside the weights: configuration, generation config, tokenizer, chat template."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.convert.config import generation_config, hf_config, token_ids
from labkit.convert.folders import TOKENIZER, write_json
from labkit.errors import LabError
from labkit.models import headers
from labkit.models.spec import ModelSpec


class Beside:
    """Configuration, generation config and tokenizer that go beside the weights."""

    def __init__(self, directory: Path | None, out: Path) -> None:
        self.directory = directory
        if directory is None:
            return
        if not directory.is_dir():
            raise LabError(f"The source {directory} is no directory.", hint="Give the model's own directory.")
        if directory.resolve() == out.resolve():
            raise LabError(f"{out} is the source itself.", hint="Choose another folder for the result.")

    def write(
        self,
        folder: Path,
        spec: ModelSpec,
        dtype: str,
        tokenizer: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Put them into a folder of weights of this spec and dtype; `extra` goes into `config.json` too."""
        config = hf_config(spec, dtype, self._config()) | dict(extra or {})
        given = self._files(["generation_config.json"])
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
            config = token_ids(tokenizer) | config
        else:
            given += self._files(TOKENIZER)
            tokenizer = self._tokenizer()
        for path in given:
            shutil.copyfile(path, folder / path.name)
        if tokenizer is not None and not self._files(["generation_config.json"]):
            write_json(folder / "generation_config.json", generation_config(tokenizer))
        write_json(folder / "config.json", config)

    def about(self) -> dict[str, Any] | None:
        """The directory's name, for the provenance."""
        return None if self.directory is None else {"directory": self.directory.resolve().name}

    def _files(self, names: list[str]) -> list[Path]:
        found = [self.directory / name for name in names] if self.directory is not None else []
        return [path for path in found if path.is_file()]

    def _config(self) -> dict[str, Any]:
        files = self._files(["config.json"])
        return headers.read_json(files[0]) if files else {}

    def _tokenizer(self) -> Any:
        """The directory's tokenizer; None where it has none."""
        if not self._files(["tokenizer.json", "tokenizer.model"]):
            return None
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.directory, local_files_only=True)
