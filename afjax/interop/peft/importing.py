"""Imports PEFT's LoRA adapters into a store."""

import dataclasses
import json
from pathlib import Path

from afjax.config.from_dict import to_dict
from afjax.config.values import check_name
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.interop.folders import find_folder
from afjax.interop.heads import head_params, imported_head
from afjax.interop.imported import Imported, checked_name, load_named_trunk, save_imported
from afjax.interop.model_heads import CLASS_OF_KIND, ModelClasses, check_trunk_fields
from afjax.interop.peft.families import POOLER, peft_family
from afjax.interop.peft.files import (
    CONFIG,
    RECORD,
    TENSORS,
    Header,
    read_header,
    read_object,
    read_tensors,
    tensors_digest,
)
from afjax.interop.peft.heads import HeadPlan, PeftHead, plan_head
from afjax.interop.peft.lora import lora_shapes, merged_pooler, read_lora
from afjax.interop.peft.record import Record, read_record
from afjax.interop.peft.settings import PeftSettings, read_model_class, read_settings, read_targets
from afjax.interop.tensors import check_shapes
from afjax.tasks.kinds import TASK_KINDS
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.pretrained import Trunk, check_length


def import_peft(
    source: str | Path,
    store_folder: str | Path,
    *,
    name: str = "",
    trunk: Trunk | None = None,
    head: PeftHead | None = PeftHead(),  # noqa: B008  (it is frozen)
    overwrite: bool = False,
) -> list[Imported]:
    """Imports a PEFT LoRA adapter and its head into a store, all or nothing.

    Args:
      source: A folder written by ``PeftModel.save_pretrained``, or a repository id on the Hugging Face hub.
      store_folder: The store.
      name: Name of the adapter and the head in the store. Defaults to the name recorded by afjax, or else to the name
        of the folder or repository.
      trunk: The encoder that the adapter was trained on. Defaults to the base model named in the files.
      head: Head metadata that is missing from the files. None to skip the head.
      overwrite: Whether existing artifacts may be replaced.

    Returns:
      The imported artifacts: the adapter, and the head if there is one.

    Raises:
      UserError: The adapter is not LoRA, a file is damaged or a pickle, afjax does not support a setting, the tensors
        do not match the settings and the trunk, or a name is taken. The store is left unchanged.

    Example:
      >>> import numpy as np
      >>> from afjax import Trunk, store
      >>> from afjax.interop.peft import export_peft, import_peft
      >>> from afjax.trunk.config import TrunkConfig
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> trunk = Trunk(name="tiny", config=config, params={}, sha256="ab", folder=None)  # the weights are not used
      >>> part = {"down": {"kernel": np.ones((2, 8, 4), np.float32)}, "up": {"kernel": np.ones((2, 4, 8), np.float32)}}
      >>> tree, settings = {"attention": {"query": part}}, {"kind": "lora", "target_modules": ["query"], "rank": 4}
      >>> draft = store.Draft("adapters", "rte", tree, config=settings, trunk=trunk.identity())
      >>> _ = store.save("store", draft)
      >>> _ = export_peft("store", "rte", "exported")
      >>> [imported.name for imported in import_peft("exported", "imported", trunk=trunk)]
      ['rte']
    """
    if name:
        check_name(name, "artifact")
    folder = find_folder(str(source), library="PEFT", patterns=(CONFIG, TENSORS, RECORD))
    path = folder / CONFIG
    values = read_object(path)
    if values is None:
        inner = [str(config.parent) for config in sorted(folder.glob(f"*/{CONFIG}"))]
        more = f" (in {folder}: {first_of(inner)})" if inner else ""
        raise UserError(f"{path} does not exist; choose a folder saved by PEFT{more}.")
    settings = read_settings(values, str(path))
    if trunk is None:
        trunk = _named_trunk(settings)
    family = peft_family(trunk.config.family)
    model_class = read_model_class(values, str(path), family)
    record, header = read_record(folder), read_header(folder)
    is_changed = record.tensors_sha256 not in ("", tensors_digest(header.path))
    record = record.without_results() if is_changed else record
    files = _Files(header, settings, model_class, record, family, trunk, is_changed)
    imported = files.read(_chosen_name(name or record.name, source, folder), head)
    save_imported(imported, store_folder, trunk=trunk, source=source, overwrite=overwrite)
    return imported


def _named_trunk(settings: PeftSettings) -> Trunk:
    """Loads the base model named in the settings."""
    name, revision = settings.base_model, settings.revision
    if name and revision not in ("", "main"):
        raise UserError(
            f'The adapter in {settings.where} was trained on revision "{revision}" of "{name}"; download that revision '
            "and set --trunk to its folder."
        )
    return load_named_trunk(name, settings.where)


def _chosen_name(name: str, source: str | Path, folder: Path) -> str:
    """Returns the name for the imported artifacts.

    It is ``name`` or, if empty, the name of the folder or repository.
    """
    chosen = name or (folder.resolve().name if Path(str(source)).is_dir() else str(source).rstrip("/").split("/")[-1])
    return checked_name(chosen, source)


@dataclasses.dataclass(frozen=True)
class _Files:
    """An adapter's header, settings, record and trunk, before any tensor is loaded.

    ``model_class`` is the base model's class without the family's prefix, or empty if unknown. ``is_changed`` is true
    if afjax exported other tensors than the folder now has.
    """

    header: Header
    settings: PeftSettings
    model_class: str
    record: Record
    family: ModelClasses
    trunk: Trunk
    is_changed: bool

    def read(self, name: str, given: PeftHead | None) -> list[Imported]:
        """Loads the adapter and, unless ``given`` is None, the head."""
        trunk, prefix = self.trunk.config, self._prefix()
        self._check_encoder(prefix)
        plan = self._plan_head(given, name, prefix)
        outside = [module for module in self.header.lora if not self._in_encoder(module, prefix)]
        skipped, in_head = ([], self._head_layers(plan, outside)) if given is not None else (outside, outside)
        targets = read_targets(self.settings, trunk, in_head, prefix, with_head=given is not None)
        self._check_layers(list(targets))
        if prefix + POOLER not in self.header.lora:
            # PEFT's settings select the pooler, but the base model's class does not have one.
            targets = {module: scale for module, scale in targets.items() if module != POOLER}
        shapes = {
            f"{module}.lora_{part}.weight": shape
            for module, parts in self.header.lora.items()
            for part, shape in parts.items()
            if module not in skipped
        }
        expected = lora_shapes(targets, trunk, prefix)
        if given is not None:
            shapes |= self.header.saved
            expected |= plan.shapes(trunk.hidden_size, prefix) if plan else {}
        check_shapes(str(self.header.path), expected, shapes)
        if plan:
            self._check_head(plan)
        tensors = read_tensors(self.header, expected)
        config, tree, notes = read_lora(targets, tensors, trunk, prefix, self.settings, self.record.blocks)
        if self.is_changed:
            notes.append("its weights have changed since afjax exported them, so its scores and seed are left out")
        if skipped:
            notes.append(f"its LoRA in the head ({', '.join(skipped)}) is left out")
        if f"{prefix}{POOLER}" in self.header.lora:
            notes.append(
                "its LoRA on the pooler is merged into the head's own pooler"
                if plan and plan.pooler == "lora"
                else "its LoRA on the pooler, which no head uses, is left out"
            )
        if given is not None and plan is None and self.model_class not in ("", "Model"):
            model = self.family.classes + self.model_class
            notes.append(f"its folder has no head, because the {model}'s head was not trained with the adapter")
        adapter = Imported(
            kind="adapters",
            name=name,
            params=tree,
            details={"config": to_dict(config), **to_dict(self.record.adapter)},
            notes=notes,
        )
        if plan is None:
            return [adapter]
        if plan.pooler == "lora":
            tensors |= merged_pooler(self.trunk.params["pooler"], targets[POOLER], tensors, prefix)
        modules = [*([prefix + POOLER] if plan.pooler else []), *plan.layout.linear]
        params = head_params(plan.record, tensors, modules)
        return [adapter, imported_head(plan.record, params, name, adapter, self._head_notes(plan))]

    def _prefix(self) -> str:
        """Returns the name prefix of the encoder's modules, such as ``bert.``.

        The prefix is empty for a model without a head.

        Raises:
          UserError: The tensor names belong to a different encoder family.
        """
        names = ENCODER_FAMILIES[self.trunk.config.family].weight_names
        own, first = names.prefix, {module.partition(".")[0] for module in self.header.lora}
        # The names decide, because task_type can be wrong: FEATURE_EXTRACTION for a model with a head, for example.
        has_prefix = own in first or not (first & names.scopes or self.model_class in ("", "Model"))
        foreign = first & ({family.weight_names.prefix for family in ENCODER_FAMILIES.values()} - {own})
        if has_prefix and own not in first:
            foreign |= first - {module for head in self.family.heads.values() for module in head.modules}
        if foreign:
            raise UserError(
                f'{self.header.path} has LoRA in modules of "{first_of(sorted(foreign))}", but the modules of the '
                f'trunk, a {self.trunk.config.family} encoder, are in "{own}"; use the trunk that the '
                "adapter was trained on."
            )
        return f"{own}." if has_prefix else ""

    def _plan_head(self, given: PeftHead | None, name: str, prefix: str) -> HeadPlan | None:
        """Infers the head, or returns None if there is none to import.

        Tensors that belong to no head are rejected later, by :meth:`read`.
        """
        if given is None:
            return None
        if not self.header.saved or self.model_class == "Model":
            layout = self.family.heads.get(self.model_class)
            if missing := [name for name in self.settings.modules_to_save if layout and name in layout.modules]:
                raise UserError(
                    f"{self.settings.where} has modules_to_save={json.dumps(missing)}, but {self.header.path} does not "
                    "have their weights. A conversion to plain LoRA drops them: copy them from the file before the "
                    "conversion, or skip the head with --no_head."
                )
            if given != PeftHead():
                raise UserError(f"{self.header.path} has no head; remove --kind, --labels and --max_length.")
            return None
        return plan_head(
            self.header,
            self.family,
            self.model_class,
            given,
            self.record.head,
            name=name,
            trunk=self.trunk.config,
            prefix=prefix,
        )

    def _head_layers(self, plan: HeadPlan | None, with_lora: list[str]) -> list[str]:
        """Returns the names of the head's linear layers, which target_modules can select.

        Args:
          plan: The head, or None if there is none to import.
          with_lora: The modules outside the encoder that have LoRA.

        Raises:
          UserError: A module outside the encoder is not one of the head's linear layers.
        """
        layout = plan.layout if plan else self.family.heads.get(self.model_class)
        known = list(layout.linear) if layout else []
        if unknown := [name for name in with_lora if name not in known]:
            raise UserError(
                f"{self.header.path} has LoRA in the head ({first_of(unknown)}), which afjax does not support; skip "
                "the head with --no_head."
            )
        return known

    def _in_encoder(self, name: str, prefix: str) -> bool:
        """Whether a module or tensor belongs to the encoder, and not to the head."""
        scopes = ENCODER_FAMILIES[self.trunk.config.family].weight_names.scopes
        return name.startswith(prefix) and name.removeprefix(prefix).partition(".")[0] in scopes

    def _check_encoder(self, prefix: str) -> None:
        """Raises UserError if the file has weights of the encoder itself, except its pooler."""
        trained = [
            name
            for name in self.header.saved
            if self._in_encoder(name, prefix) and not name.startswith(prefix + POOLER)
        ]
        if trained:
            raise UserError(
                f"{self.header.path} has weights of the encoder itself ({first_of(trained)}), which a LoRA adapter in "
                "afjax cannot replace. Train it without these modules in modules_to_save, and save it without "
                "save_embedding_layers."
            )

    def _check_layers(self, targets: list[str]) -> None:
        if targets == [POOLER]:
            raise UserError(
                f"{self.settings.where} has LoRA only in the pooler, but afjax needs LoRA in at least one of the "
                "encoder's layers."
            )

    def _check_head(self, plan: HeadPlan) -> None:
        """Raises UserError if the head does not fit the trunk.

        The head may need a pooler that the trunk lacks, or its maximum length may be too large.
        """
        kind = plan.record.task.kind
        reads_pooler = TASK_KINDS[kind].reads == "pooled" and plan.record.config.pooler == "trunk"
        if (reads_pooler or plan.pooler == "lora") and "pooler" not in self.trunk.params:
            raise UserError(
                f'{self.header.path} has a head that uses the trunk\'s pooler, but the trunk "{self.trunk.name}" has '
                "none; use the trunk that the adapter was trained on, or skip the head with --no_head."
            )
        class_name = f"{self.family.classes}{CLASS_OF_KIND[kind]}"
        check_trunk_fields(plan.layout, class_name, self.trunk, " Skip the head with --no_head.")
        check_length(plan.record.max_length, self.trunk)

    def _head_notes(self, plan: HeadPlan) -> list[str]:
        # In PEFT 0.21, PeftModelForQuestionAnswering.forward accepts token_type_ids but ignores them.
        if plan.record.task.kind == "span" and self.trunk.config.type_vocab_size > 1 and self.record.head is None:
            return ["PEFT's question-answering model ignores token types, but afjax uses them, so the logits differ"]
        return []
