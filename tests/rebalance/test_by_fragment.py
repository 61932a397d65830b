"""What is kept of fragments by partition is what a dict would keep, and has no empty part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rebalance.by_fragment import ByFragment
from wal.ids import Fragment

NAMES: st.SearchStrategy[Fragment] = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
DONE = st.lists(st.tuples(st.sampled_from(["set", "default", "pop", "del"]), NAMES, st.integers(0, 9)), max_size=40)


@given(DONE)
def test_it_is_a_dict_of_fragments(done: list[tuple[str, Fragment, int]]) -> None:
    kept, model = ByFragment[int](), dict[Fragment, int]()
    for what, name, value in done:
        match what:
            case "set":
                kept[name] = model[name] = value
            case "default":
                assert kept.setdefault(name, value) == model.setdefault(name, value)
            case "pop":
                assert kept.pop(name, -1) == model.pop(name, -1)
            case _ if name in model:
                del kept[name], model[name]
        assert all(kept.parts.values()), "an empty part is none"
        assert (bool(kept), len(kept), dict(kept)) == (bool(model), len(model), model)
        assert (kept.get(name), kept.get(name, -1), name in kept) == (model.get(name), model.get(name, -1), name in model)
        assert dict(kept.of(name[1])) == {ns: it for (ns, number), it in model.items() if number == name[1]}
    assert sorted(kept.names()) == sorted(model)
    assert sorted(it for part in kept.taken() for it in part.values()) == sorted(model.values())
    assert not kept


def test_who_goes_through_its_names_may_change_all_of_it() -> None:
    kept = ByFragment[None]()
    for number in range(3):
        for namespace in ("a", "b"):
            kept[namespace, number] = None
    met: list[Fragment] = []
    for name in kept.names():
        met.append(name)
        kept.pop(name)
        kept.pop(("a", 2))
        kept["later", number + len(met)] = None
    assert met == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2)]
