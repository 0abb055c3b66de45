"""The network of a model: what every preset's edges say, and that answers are read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest

import simcore.models.graph as graphs
import small
from simcore.docgen.models import graph_of
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.models.blocks import LayerKind
from simcore.models.graph import ModelGraph, build, known_presets, model_config
from simcore.models.network import DATA, Edge, Network, connect, running_order
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.tensors import tensors
from simcore.operators.megatron.tensors import BUILT
from simcore.placement.mesh import Mesh
from simcore.placement.plan import Plan, place
from simcore.simulate import check, simulate

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
TIED_LLAMA = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
TABLE = 1000 * 256


def changed(network: Network, change: Callable[[Network], None]) -> Network:
    copy: Network = nx.MultiDiGraph(network)
    change(copy)
    return copy


def removed(network: Network, kind: Edge) -> Network:
    """The same network without its edges of a kind."""
    ends = [(first, second) for first, second, key in network.edges(keys=True) if key == kind]
    assert ends

    def remove(copy: Network) -> None:
        for first, second in ends:
            copy.remove_edge(first, second, kind)

    return changed(network, remove)


def without(graph: ModelGraph, kind: Edge) -> ModelGraph:
    return graph.with_network(removed(graph.network, kind))


def numel(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.numel * spec.copies for spec in specs if not spec.is_buffer)


def count_of_parts(parts: Iterable[tuple[str, LayerKind]], *, tied: bool) -> int:
    """Parameters of a tuple of layers: a tied head has none, a shared block counts once."""
    total, known = 0, set[object]()
    for _, kind in parts:
        specs = tensors(kind)
        if kind.shared is not None and kind.shared in known:
            specs = tuple(spec for spec in specs if not spec.name.startswith("shared_transformer."))
        known.add(kind.shared)
        total += 0 if tied and kind.name == "head" else numel(specs)
    return total


# ---- every preset ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", known_presets())
def test_every_layer_is_reached_from_the_embedding_in_one_order(preset: str) -> None:
    graph = graph_of(preset)
    paths = tuple(path for path, _ in graph.architecture.parts)
    data = nx.DiGraph((first, second) for first, second, kind in graph.network.edges(keys=True) if kind in DATA)
    assert nx.is_directed_acyclic_graph(data)
    assert {paths[0], *nx.descendants(data, paths[0])} == set(paths) == set(graph.network)
    assert nx.is_frozen(graph.network)
    assert tuple(layer.path for layer in graph.layers) == paths
    assert [layer.index for layer in graph.layers] == list(range(len(paths)))


@pytest.mark.parametrize("preset", known_presets())
def test_parameters_by_edges_are_those_of_the_layers_one_by_one(preset: str) -> None:
    graph = graph_of(preset)
    assert graph.count() == count_of_parts(graph.architecture.parts, tied=graph.architecture.tied)
    assert graph.has_tied_head == graph.architecture.tied
    borrowed = sum(numel([graph.tensors[graph.layers[layer].kind][number]]) for layer, number in graph.owners)
    whole = sum(numel(graph.tensors[layer.kind]) for layer in graph.layers)
    assert graph.count() == whole - borrowed


@pytest.mark.parametrize("preset", known_presets())
def test_weights_at_both_ends_of_an_edge_are_alike(preset: str) -> None:
    graph = graph_of(preset)
    for user, owner in graph.owners.items():
        theirs, own = (graph.tensors[graph.layers[layer].kind][number] for layer, number in (user, owner))
        assert (theirs.shape, theirs.dims, theirs.is_owned, own.is_owned) == (own.shape, own.dims, False, True)


# ---- order ----------------------------------------------------------------------------------------------------------
def turned(network: Network, first: str, second: str) -> Network:
    """The same network with one edge of data flow the other way round."""
    def turn(copy: Network) -> None:
        copy.remove_edge(first, second, Edge.FLOW)
        copy.add_edge(second, first, key=Edge.FLOW, weights=())

    return changed(network, turn)


@pytest.mark.parametrize("ends", list(pairwise(layer.path for layer in graph_of("llama-tiny").layers)))
def test_an_edge_that_is_turned_leaves_no_single_order(ends: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="data flow does not say which of"):
        running_order(turned(graph_of("llama-tiny").network, *ends))


def test_a_circle_has_no_order() -> None:
    def close(network: Network) -> None:
        network.add_edge("loss", EMBEDDING, key=Edge.FLOW, weights=())

    with pytest.raises(ValueError, match="in a circle"):
        running_order(changed(graph_of("llama-tiny").network, close))


def test_layers_run_as_edges_say() -> None:
    """All edges of the chain turned round: the loss runs first."""
    graph = graph_of("llama-tiny")
    back = graph.with_network(nx.MultiDiGraph(graph.network).reverse())
    assert [layer.path for layer in back.layers] == [layer.path for layer in reversed(graph.layers)]
    assert back.num_blocks == graph.num_blocks


# ---- what passes a border -------------------------------------------------------------------------------------------
def predicting(**fields: object) -> ModelGraph:
    return build(model_config("deepseek-v3", {"mtp_num_layers": 1, **fields}, "model"), "megatron")


def test_the_decoders_output_passes_multi_token_prediction() -> None:
    graph = predicting()
    [module] = graph.branches
    assert graph.kinds[graph.layers[module].kind].name == "mtp"
    assert graph.ends(Edge.BRANCH) == ((module - 1, module), (module, graph.head))
    assert [layer for layer, count in enumerate(graph.passing) if count != 1] == [module, len(graph.layers) - 1]
    assert (graph.passing[module], graph.passing[-1]) == (2, 0)
    assert graph.used_twice == {"embedding.word_embeddings.weight"}


def test_without_its_branch_nothing_but_the_chain_passes() -> None:
    """The module leaves the order of layers with its edges."""
    graph = predicting()
    with pytest.raises(ValueError, match="data flow does not say which of"):
        without(graph, Edge.BRANCH)


def test_a_pipeline_is_cut_where_nothing_is_shared() -> None:
    graph = graph_of("zamba2-1.2b")
    last = max(second for _, second in graph.ends(Edge.SHARED))
    assert graph.cuts == set(range(last, len(graph.layers) - 1))
    assert graph.passing[1:last] == (2,) * (last - 1)
    free = without(without(graph, Edge.SHARED), Edge.RESIDUAL)
    assert free.cuts == set(range(len(graph.layers) - 1))


# ---- weights --------------------------------------------------------------------------------------------------------
def staged(graph: ModelGraph, *counts: int) -> list[Plan]:
    """Plans of the first rank of each stage under DDP; `counts`: number of layers in each stage."""
    _, table = small.prepared("ddp", {})
    ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
    table = replace(table, stages=tuple(tuple(range(*pair)) for pair in pairwise(ends)),
                    schedule=replace(table.schedule, num_stages=len(counts)))
    return [place(graph, Mesh(len(counts)), table, rank) for rank in range(len(counts))]


def params(plan: Plan) -> int:
    return sum(part.num_params for part in plan.at_rest().values())


def test_a_block_that_stages_share_lies_where_its_edges_begin() -> None:
    """Zamba2 on two stages: the second uses a transformer of the first, and holds its own without the edges."""
    graph = graph_of("zamba2-1.2b")
    free = without(graph, Edge.SHARED)
    owner = graph.ends(Edge.SHARED)[0][0]
    block = sum(spec.numel for spec in graph.tensors[graph.layers[owner].kind] if spec.name.startswith("shared_"))
    half = 20
    shared, alone = (staged(one, half, len(graph.layers) - half) for one in (graph, free))
    assert [user for _, user in graph.ends(Edge.SHARED) if user >= half] == [24, 30, 36]
    assert params(alone[1]) - params(shared[1]) == 3 * block
    assert params(alone[0]) - params(shared[0]) == 2 * block
    assert alone[1].at_rest()["attention"].params_bytes > 0
    assert "attention" not in shared[1].at_rest()
    assert free.count() - graph.count() == 5 * block


def test_one_edge_less_is_one_block_more() -> None:
    """The layer that loses its edge becomes a kind of its own."""
    graph = graph_of("zamba2-1.2b")
    owner, user = (graph.layers[layer].path for layer in graph.ends(Edge.SHARED)[-1])
    less = graph.with_network(changed(graph.network, lambda copy: copy.remove_edge(owner, user, Edge.SHARED)))
    block = sum(spec.numel for spec in tensors(graph.kinds[graph.layers[graph.ends(Edge.SHARED)[0][0]].kind])
                if spec.name.startswith("shared_"))
    assert less.count() - graph.count() == block
    own = next(layer for layer in less.layers if layer.path == user)
    assert all(spec.is_owned for spec in less.tensors[own.kind])


def last_stage(change: Callable[[ModelGraph], ModelGraph] = lambda graph: graph) -> Plan:
    """The last of two stages of a tied Llama under Megatron, whose distributed optimizer has two ranks."""
    job, table = small.prepared("megatron", {"pp": 2, "dp_shard": 2}, model=TIED_LLAMA)
    return place(change(job.graph), job.mesh, table, 2)


def test_the_last_stages_copy_of_a_tied_embedding_is_an_edge() -> None:
    """With it the stage holds the table, and reduces its gradient in a bucket of its own, as the first stage does."""
    plan, free = last_stage(), last_stage(lambda graph: without(graph, Edge.COPY))
    assert plan.graph.copied == {(0, 0), (plan.graph.head, 0)}
    assert plan.at_rest()["embedding"].num_params == TABLE
    (buffer,), (one,) = rank_buffers(plan), rank_buffers(free)
    assert (len(buffer.flat.buckets), len(one.flat.buckets)) == (2, 1)


def test_where_it_is_tied_instead_the_last_stage_holds_nothing_of_it() -> None:
    def tie(graph: ModelGraph) -> ModelGraph:
        weights = graph.network.edges[EMBEDDING, HEAD, Edge.COPY]["weights"]

        def turn(network: Network) -> None:
            network.remove_edge(EMBEDDING, HEAD, Edge.COPY)
            network.add_edge(EMBEDDING, HEAD, key=Edge.TIED, weights=weights)

        return graph.with_network(changed(graph.network, turn))

    assert params(last_stage()) - params(last_stage(tie)) == TABLE
    assert "embedding" not in last_stage(tie).at_rest()


@pytest.mark.parametrize("framework", ["fsdp2", "ddp", "zero3"])
def test_a_tied_head_without_its_edge_has_a_weight(framework: str) -> None:
    job, table = small.prepared(framework, {}, model=TIED_LLAMA)
    tied, free = (place(graph, job.mesh, table, 0) for graph in (job.graph, without(job.graph, Edge.TIED)))
    assert params(free) - params(tied) == free.graph.count() - tied.graph.count() == TABLE
    assert tied.graph.tied_kinds == {tied.graph.layers[0].kind, tied.graph.layers[tied.graph.head].kind}
    assert free.graph.tied_kinds == set()


def test_stages_have_copies_of_every_tied_weight() -> None:
    """Under Megatron multi-token prediction holds the embedding too."""
    job, _ = small.prepared("megatron", {"pp": 2}, model={"config": "deepseek-v3", "overrides": {
        "mtp_num_layers": 1, "num_hidden_layers": 4}})
    assert not job.graph.ends(Edge.TIED)
    assert job.graph.ends(Edge.COPY) == ((0, *job.graph.branches),)
    assert {layer for layer, _ in job.graph.copied} == {0, *job.graph.branches}


# ---- whole answers --------------------------------------------------------------------------------------------------
@pytest.fixture
def unlinked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Edge], None]]:
    """Models are built without edges of a kind from then on."""
    def leave_out(kind: Edge) -> None:
        monkeypatch.setattr(graphs, "connect", lambda *given, **how: removed(connect(*given, **how), kind))
        graphs._build.cache_clear()

    yield leave_out
    graphs._build.cache_clear()


def test_layers_that_share_no_edge_are_units_of_their_own(unlinked: Callable[[Edge], None]) -> None:
    """FSDP2 refuses Zamba2 because two layers have one parameter: without edges they have two."""
    asked = small.scenario("fsdp2", {"dp_shard": 2}, model="zamba2-1.2b")
    assert "is shared with a parameter already managed by another FSDP group" in check(asked).problems[0].message
    unlinked(Edge.SHARED)
    assert check(asked, rules_only=True).status == "ok"


def test_a_report_says_what_edges_say(unlinked: Callable[[Edge], None]) -> None:
    """Under Megatron the first and the last stage reduce a tied table; without the edge they have nothing in common."""
    asked = small.scenario("megatron", {"pp": 2, "dp_shard": 2}, model=TIED_LLAMA)
    tied = simulate(asked)
    unlinked(Edge.TIED)
    free = simulate(asked)
    first, last = tied.ranks[0], tied.ranks[-1]
    assert (tied.status, free.status) == ("ok", "ok")
    assert first.at_rest["embedding"].num_params == last.at_rest["embedding"].num_params
    assert "tied embedding" in {one.what for one in tied.assumptions} - {one.what for one in free.assumptions}
    assert tied.ranks[-1] != free.ranks[-1]


@pytest.mark.parametrize("preset", [name for name in known_presets() if str(
    model_config(name, None, "model")["model_type"]) in BUILT])
def test_paths_are_the_same_whoever_registers_the_tensors(preset: str) -> None:
    fields = model_config(preset, None, "model")
    theirs, own = build(fields, "megatron"), build(fields, "hf")
    assert tuple(layer.path for layer in theirs.layers) == tuple(layer.path for layer in own.layers)
    assert theirs.passing == own.passing
