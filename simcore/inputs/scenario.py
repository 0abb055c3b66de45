"""A scenario: model, framework, layout, training. Validation is strict, and every value knows its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from simcore.errors import InputError, Problem
from simcore.inputs.block import BY_SHAPE, MAP, WORD, Block, BytesOrAuto, Fraction, Name, OpenMap, Text, problems_of
from simcore.inputs.bounds import DEGREE, RANKS
from simcore.inputs.document import Document
from simcore.inputs.evaluation import Evaluation
from simcore.inputs.generation import Generation, Mesh, Rl
from simcore.inputs.search_keys import SearchKeys
from simcore.inputs.training import Training
from simcore.inputs.yaml_parser import dotted
from simcore.units import parse_cublas

__all__ = [
    "MAX_RANKS",
    "Checkpoint",
    "Environment",
    "Evaluation",
    "Generation",
    "Limits",
    "Mesh",
    "ModelFile",
    "Rl",
    "Scenario",
    "Teacher",
    "TopologyFile",
    "of_teacher",
    "parse_scenario",
    "scenario_schema",
]

MAX_RANKS = RANKS
"""Largest world size that a scenario may ask for."""

_Degree = Annotated[int, Field(ge=1, le=DEGREE)]


class ModelFile(Block):
    """A model given by its configuration, with some of the configuration's fields changed."""

    config: Text = Field(description="Preset, Hugging Face id, or path of a config.json")
    overrides: OpenMap = Field(default={}, description="Keys of the configuration that get another value")


class TopologyFile(Block):
    """A topology of which only some nodes, or some GPUs of each node, are used, or whose GPUs have less power."""

    file: Text = Field(description="A name in topologies/, or a path")
    num_nodes: _Degree | None = Field(
        default=None, description="Nodes there are; left out: as in the file, or as many as the mesh needs")
    gpus_per_node: _Degree | None = Field(default=None, description="GPUs of each node that the job has; left out: all")
    power_limit: Text | None = Field(
        default=None, description="Power that each GPU may draw, such as 500 W (nvidia-smi -pl); left out: the file's")


def _workspace_or_auto(text: str) -> str:
    if text != "auto":
        parse_cublas(text)
    return text


class Teacher(Block):
    """The model from whose logits a policy learns, with passes of its own on the GPUs that train."""

    model: Text = Field(description="Preset, Hugging Face id, or path of a config.json")
    implementation: Name = Field(default="auto", description="Whose layer code runs; auto: as for the policy")
    mesh: Mesh = Field(default=Mesh(), description="Its own degrees of parallelism, over the same ranks")
    sequence_parallel: bool = Field(default=False, description="Split norms over its tp")
    top_k: Annotated[int, Field(ge=1, le=2**16)] = Field(default=64, description="Logits of a token that it passes on")
    framework_options: OpenMap = Field(default={}, description="Options of the framework for this model")


class Environment(Block):
    """Environment variables of the job's processes that change memory."""

    cublas_workspace_config: Annotated[Text, AfterValidator(_workspace_or_auto)] = Field(
        default="auto", description="CUBLAS_WORKSPACE_CONFIG, such as :4096:8 (KiB); auto: not set, torch's default"
    )
    expandable_segments: bool = Field(default=False, description="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


class Checkpoint(Block):
    """Reading and writing of the model's files."""

    load: Literal["auto", "every_rank", "rank0", "sharded", "none"] = Field(
        default="auto", description="Which ranks read the model: every rank all of it, rank 0, each its own part, none"
    )
    save: Literal["auto", "full", "sharded", "none"] = Field(
        default="auto", description="Which ranks write it: rank 0 after a gather, each its own part, none"
    )
    merge: Literal["none", "device", "host"] = Field(
        default="none", description="Where adapters are merged into the base afterwards: on the GPU in the training "
        "process, or on the host in a process of its own"
    )
    export: Literal["none", "job", "host"] = Field(
        default="none", description="Where a trained model becomes files of Hugging Face: in the job, whose ranks "
        "gather it, or in one process on the host"
    )


class Limits(Block):
    """Limits on the use of a device."""

    usable_memory: BytesOrAuto = Field(
        default="auto", description="Device memory that the job may use, such as 79 GiB; auto: what the topology says"
    )
    max_fill: Fraction = Field(default=1.0, description="Fraction of that at which a layout still counts as fitting")


_SWEEP_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}},
        {"type": "array", "items": {"type": "object"}, "minItems": 1},
        {"type": "null"},
    ]
}


class Scenario(Block):
    """One scenario file: a model, a framework, how it is laid out over GPUs, and what it trains or serves."""

    name: Name = Field(description="Name, unique in a batch")
    workload: Literal["train", "dpo", "grpo", "distillation", "serve"] = Field(default="train", description="What runs")
    model: Annotated[Annotated[Text, WORD] | Annotated[ModelFile, MAP], BY_SHAPE] = Field(
        description="Preset, Hugging Face id, path of a config.json, or {config, overrides}"
    )
    implementation: Name = Field(
        default="auto", description="Whose layer code runs: megatron, automodel, hf, hub, autoep, torchtitan, "
        "kempnerforge, llmfoundry"
    )
    framework: Name = Field(description="Training framework, such as fsdp2, automodel, megatron")
    framework_version: Name = Field(default="auto", description="Version of the framework")
    topology: Annotated[Annotated[Text, WORD] | Annotated[TopologyFile, MAP], BY_SHAPE] = Field(
        description="A name in topologies/, a path, or {file, num_nodes, gpus_per_node, power_limit}"
    )
    mesh: Mesh = Field(default=Mesh(), description="Degrees of parallelism")
    training: Training = Field(description="What one optimizer step does")
    evaluation: Evaluation | None = Field(default=None, description="Evaluation between the steps of a training")
    rl: Rl | None = Field(default=None, description="Reinforcement learning, for grpo and distillation")
    teacher: Teacher | None = Field(default=None, description="The model to learn from, for the workload distillation")
    generation: Generation | None = Field(
        default=None, description="The engine that generates, for grpo, distillation and serve")
    framework_options: OpenMap = Field(default={}, description="What only this framework knows, in its own spelling")
    environment: Environment = Field(default=Environment(), description="Variables that change memory")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="How the model's files are read and written")
    limits: Limits = Field(default=Limits(), description="How much of a device may be used")
    search: SearchKeys | None = Field(default=None, description="What `rankscope search` tries; read by it alone")
    sweep: Any = Field(
        default=None, description="Keys with lists of values: one scenario for each", json_schema_extra=_SWEEP_SCHEMA
    )

    @model_validator(mode="before")
    @classmethod
    def _served(cls, data: Any) -> Any:
        """Fills in framework, training and mesh of a scenario that serves, from its engine."""
        return _of_engine(data) if isinstance(data, dict) and data.get("workload") == "serve" else data

    _document: Document | None = PrivateAttr(default=None)
    _swept: bool = PrivateAttr(default=False)

    def __eq__(self, other: object) -> bool:
        """True if both ask the same; the files they come from do not matter."""
        return isinstance(other, Scenario) and self.normalised() == other.normalised()

    __hash__ = None  # type: ignore[assignment]

    @property
    def model_name(self) -> str:
        """Preset, id or path that the scenario names as its model, without overrides."""
        return self.model if isinstance(self.model, str) else self.model.config

    @property
    def swept(self) -> bool:
        """True if the scenario is a member of a sweep: an illegal layout is then an answer and not an error."""
        return self._swept

    @property
    def document(self) -> Document:
        """Document that the scenario was read from; for one made in Python, a document with all its keys."""
        return self._document or Document(self.name, self.normalised())

    @property
    def folder(self) -> Path:
        """Folder that relative paths in the scenario are relative to."""
        document = self._document
        return document.folder if document else Path()

    @property
    def world_size(self) -> int:
        """Number of ranks of the mesh."""
        return self.mesh.world_size

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of one optimizer step on each rank; 1 without `global_batch_size`.

        InputError if `global_batch_size` is no multiple of micro_batch_size x dp_replicate x dp_shard.
        """
        training, mesh = self.training, self.mesh
        replicas = mesh.dp_replicate * mesh.dp_shard
        per_pass = training.micro_batch_size * replicas
        if training.global_batch_size is None:
            return 1
        if training.global_batch_size % per_pass:
            message = (
                f"training.global_batch_size: expected a multiple of {per_pass} (micro_batch_size "
                f"{training.micro_batch_size} x dp_replicate {mesh.dp_replicate} x dp_shard {mesh.dp_shard}), "
                f"got {training.global_batch_size}"
            )
            raise InputError(Problem(self.where("training", "global_batch_size"), message))
        return training.global_batch_size // per_pass

    def where(self, *key_path: str | int) -> str:
        """Place of a key for an error message: `file:line` of it, or of the key that encloses it.

        For a scenario made in Python it is the dotted key.
        """
        document = self._document  # read once: pydantic looks private attributes up slowly
        return document.where(key_path) if document else dotted(key_path)

    def normalised(self) -> dict[str, Any]:
        """All keys but `search` and `sweep` with their values as JSON types, defaults filled in.

        Reading it back gives an equal scenario.
        """
        return self.model_dump(mode="json", exclude={"search", "sweep"})


def of_teacher(scenario: Scenario, sequences: int, each: int) -> Scenario:
    """Scenario of the teacher's passes over `sequences`, `each` at once on a rank; its places are of `teacher`'s keys.

    Formats and lengths are the policy's. InputError without a block `teacher`.
    """
    teacher, document = scenario.teacher, scenario.document
    if teacher is None:
        raise InputError(Problem(scenario.where("workload"), "distillation: missing the block teacher"))
    training = scenario.training
    own = Training.model_validate({
        "seq_len": training.seq_len, "micro_batch_size": each, "global_batch_size": sequences,
        "lengths": training.lengths, "packed_length": training.packed_length, "precision": training.precision,
        "sequence_parallel": teacher.sequence_parallel})
    found = scenario.model_copy(update={
        "workload": "train", "model": teacher.model, "implementation": teacher.implementation, "mesh": teacher.mesh,
        "framework_options": teacher.framework_options, "training": own, "rl": None, "generation": None,
        "teacher": None, "evaluation": None})
    lines = {path[1:] if path[0] == "teacher" else path: line for path, line in document.lines.items()
             if path and (path[0] == "teacher" or path[0] not in Teacher.model_fields)}
    found._document = Document(document.path, document.data, lines, document.places)
    return found


def _of_engine(data: dict[str, Any]) -> dict[str, Any]:
    """Copy of `data` of a scenario that serves, in which `generation` and `mesh` complete each other."""
    generation, mesh = data.get("generation") or {}, data.get("mesh") or {}
    if not isinstance(generation, dict) or not isinstance(mesh, dict):
        return data
    if "max_model_len" not in generation and not data.get("training"):
        raise ValueError("generation.max_model_len: expected a whole number of tokens, the key is missing (vLLM "
                         "itself would take the length of the model's configuration)")
    tp = generation.get("tp", mesh.get("tp", 1))
    filled = {"generation": {**generation, "tp": tp}, "mesh": {**mesh, "tp": mesh.get("tp", tp)}}
    length = {"seq_len": generation["max_model_len"]} if "max_model_len" in generation else {}
    return {"framework": generation.get("engine", "vllm"), "training": length, **data, **filled}


def parse_scenario(document: Document, *, swept: bool = False) -> Scenario:
    """Checks one parsed file and makes a scenario of it, its `sweep` ignored.

    InputError with every problem in it. `swept`: True for a member of a sweep.
    """
    data = {key: value for key, value in document.data.items() if key != "sweep"}
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise InputError(problems_of(error, Scenario, document.where)) from None
    scenario._document, scenario._swept = document, swept
    _check_world_size(scenario)
    _ = scenario.num_microbatches
    return scenario


def _check_world_size(scenario: Scenario) -> None:
    if scenario.world_size > MAX_RANKS:
        message = f"mesh: expected at most {MAX_RANKS} ranks, got {scenario.world_size}"
        raise InputError(Problem(scenario.where("mesh"), message))


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a scenario file, for editors."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rankscope scenario"}
    schema = Scenario.model_json_schema()
    trains = [key for key in schema["required"] if key in ("framework", "training")]
    serves = {"properties": {"workload": {"const": "serve"}}, "required": ["workload"]}
    needed = {"required": [key for key in schema["required"] if key not in trains],
              "if": serves, "else": {"required": trains}}
    return {**schema, **needed, **head}
