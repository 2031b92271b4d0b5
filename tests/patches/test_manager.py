"""One wrapper for a target, subscribers that come and go, the very original back at the end."""

import functools
import inspect
import os
import pickle
import random
import sys
import threading
import types

import pytest

from stayfinite.errors import UsageError
from stayfinite.patches import Target, subscribe, table


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("patched_module")

    def double(x):
        """Twice."""
        return 2 * x

    double.__module__, double.__qualname__ = "patched_module", "double"
    made.double = double
    monkeypatch.setitem(sys.modules, "patched_module", made)
    return made


def target(owner, name="double", reason="a test", switch="tests"):
    return Target(owner, name, reason, switch)


def noting(original, subscribers):
    def call(*args, **kwargs):
        for subscriber in subscribers:
            subscriber.append(args)
        return original(*args, **kwargs)

    return call


def rows(owner):
    return [r for r in table() if r.owner == owner.__name__ or r.owner.endswith(owner.__name__)]


def test_subscribers_leave_in_any_order_and_the_original_is_back(module):
    original = module.double
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)):
        heard = [[], [], []]
        subscriptions = [subscribe(target(module), noting, h) for h in heard]
        wrapper = module.double
        assert wrapper is not original
        for num_left, i in enumerate(order):
            assert module.double(num_left) == 2 * num_left
            subscriptions[i].close()
            assert (module.double is wrapper) == (num_left < 2)
        assert module.double is original
        assert [len(heard[i]) for i in order] == [1, 2, 3]
    assert not rows(module)


def test_the_wrapper_is_made_once_and_sees_subscribers_live(module):
    made = []

    def make(original, subscribers):
        made.append(subscribers)
        return lambda x: [*subscribers]

    with subscribe(target(module), make, "a"), subscribe(target(module), make, "b") as second:
        assert module.double(1) == ["a", "b"]
        assert made[0][-1] == "b" and made[0][0:1] == ("a",) and len(made[0]) == 2
        second.close()
        second.close()
        assert not second.is_open
        assert module.double(1) == ["a"]
    assert len(made) == 1 and len(made[0]) == 0


def test_different_wrappers_for_one_target_are_all_called_and_leave_in_any_order(module):
    original = module.double

    def plus(original, subscribers):
        return lambda x: original(x) + len(subscribers)

    def times(original, subscribers):
        return lambda x: original(x) * 10

    def minus(original, subscribers):
        return lambda x: original(x) - 1000

    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        effects = {0: lambda y: y + 1, 1: lambda y: y * 10, 2: lambda y: y - 1000}
        subscriptions = [subscribe(target(module), m, m) for m in (plus, times, minus)]
        wrapper = module.double
        for i in order:
            expected = functools.reduce(lambda y, k: effects[k](y), sorted(effects), 6)
            assert module.double(3) == expected
            assert len(rows(module)) == 1
            del effects[i]
            subscriptions[i].close()
        assert module.double is original
        assert wrapper(3) == 6


def test_an_inherited_attribute_is_deleted_again():
    class Base:
        def double(self, x):
            return 2 * x

    class Child(Base):
        pass

    heard = []
    with subscribe(target(Child), noting, heard):
        assert Child().double(2) == 4 and Base().double(2) == 4
        assert len(heard) == 1
    assert "double" not in vars(Child)
    assert Child.double is Base.double


def test_static_class_and_property_attributes_stay_what_they_are():
    class Owner:
        builtin = len

        @staticmethod
        def static(x):
            return ("static", x)

        @classmethod
        def of_class(cls, x):
            return (cls.__name__, x)

        @property
        def prop(self):
            return "value"

        @prop.setter
        def prop(self, value):
            self.was_set = value

    class Child(Owner):
        pass

    before = dict(vars(Owner))
    names = ("static", "of_class", "prop", "builtin")
    heard = {n: [] for n in names}
    subscriptions = [subscribe(target(Owner, n), noting, heard[n]) for n in names]
    owner = Child()
    assert owner.static(1) == Owner.static(1) == ("static", 1)
    assert owner.of_class(1) == ("Child", 1)
    assert owner.prop == "value"
    owner.prop = 3
    assert owner.was_set == 3
    assert owner.builtin([1, 2]) == 2
    assert [type(vars(Owner)[n]) for n in names[:3]] == [staticmethod, classmethod, property]
    for subscription in subscriptions:
        subscription.close()
    assert [len(heard[n]) for n in names] == [2, 1, 1, 1]
    assert all(vars(Owner)[n] is before[n] for n in names)


def test_an_attribute_of_an_object_is_hidden_and_uncovered_again():
    class Stream:
        def write(self, text):
            return len(text)

    stream, heard = Stream(), []
    with subscribe(target(stream, "write"), noting, heard):
        assert stream.write("abc") == 3
        assert Stream().write("abc") == 3
    assert heard == [("abc",)]
    assert vars(stream) == {}


def test_names_signature_documentation_and_pickles_are_those_of_the_original(module):
    with subscribe(target(module), noting, []), subscribe(target(os, "getpid"), noting, []):
        assert module.double.__name__ == "double" and module.double.__doc__ == "Twice."
        assert str(inspect.signature(module.double)) == "(x)"
        assert inspect.unwrap(module.double).__code__.co_name == "double"
        assert pickle.loads(pickle.dumps(module.double)) is module.double
        wrapped = pickle.dumps(os.getpid)
        assert pickle.loads(wrapped) is os.getpid
    assert pickle.loads(wrapped) is os.getpid


def test_a_patch_is_known_by_the_sets_in_which_the_original_is(module):
    known, others = {module.double}, {len}
    wanted = Target(module, "double", "a test", "tests", members=(known, others))
    with subscribe(wanted, noting, []):
        assert module.double in known and len(known) == 2 and others == {len}
    assert known == {module.double}


def test_a_patch_of_somebody_else_on_top_of_ours_stays(module):
    original, heard = module.double, []
    subscription = subscribe(target(module), noting, heard)
    ours = module.double
    module.double = theirs = lambda x: ours(x) + 1
    subscription.close()
    assert module.double is theirs
    assert module.double(2) == 5 and heard == []
    assert [r.state for r in rows(module)] == ["under another patch"]
    module.double = ours  # they put back what they had found
    assert rows(module) == []
    assert module.double is original


def test_a_new_subscriber_goes_on_top_of_somebody_elses_patch_and_leaves_it_there(module):
    first, second = [], []
    below = subscribe(target(module), noting, first)
    ours = module.double
    module.double = theirs = lambda x: ours(x) + 1
    above = subscribe(target(module), noting, second)
    assert module.double(2) == 5
    assert first == second == [(2,)]
    assert sorted(r.state for r in rows(module)) == ["active", "under another patch"]
    below.close()
    assert module.double(2) == 5 and first == [(2,)]
    above.close()
    assert module.double is theirs
    module.double = ours
    table()
    assert module.double.__code__.co_name == "double"


def test_whoever_puts_the_original_back_over_ours_is_noticed(module):
    original, heard = module.double, []
    subscription = subscribe(target(module), noting, heard)
    module.double = original
    with subscribe(target(module), noting, []):
        module.double(1)
        assert heard == [(1,)]
        module.double = original
    subscription.close()
    assert module.double is original
    assert rows(module) == []


def test_the_table_says_who_patches_what_and_why(module):
    with (
        subscribe(target(module, reason="to see", switch="eyes"), noting, []),
        subscribe(target(module, reason="to hear", switch="ears"), noting, []),
    ):
        (row,) = rows(module)
    assert (row.owner, row.name, row.reason) == ("patched_module", "double", "to see; to hear")
    assert (row.switch, row.state) == ("eyes, ears", "active")


def test_what_cannot_be_patched_is_said_and_changes_nothing(module):
    module.value = 3
    with pytest.raises(UsageError, match=r"patched_module has no 'absent' to patch"):
        subscribe(target(module, "absent"), noting, [])
    with pytest.raises(UsageError, match=r"patched_module.value cannot be patched"):
        subscribe(target(module, "value"), noting, [])
    with pytest.raises(TypeError):
        subscribe(target(int, "bit_length"), noting, [])

    def broken(original, subscribers):
        raise KeyError("bug")

    original = module.double
    with pytest.raises(KeyError):
        subscribe(target(module), broken, [])
    assert module.double is original
    assert rows(module) == []


def test_a_finalizer_that_closes_in_the_middle_of_a_change_is_not_lost(module):
    first = subscribe(target(module), noting, [])
    original = inspect.unwrap(module.double)

    def closing(original, subscribers):
        first.close()
        return original

    second = subscribe(target(module), closing, [])
    assert not first.is_open
    second.close()
    assert module.double is original


def test_many_threads_come_and_go_and_no_call_is_lost(module):
    original, wrong, stop = module.double, [], threading.Event()

    def come_and_go(seed):
        chance = random.Random(seed)
        held = []
        for _ in range(300):
            if held and chance.random() < 0.5:
                held.pop(chance.randrange(len(held))).close()
            else:
                held.append(subscribe(target(module), noting, []))
        for subscription in held:
            subscription.close()

    def call():
        while not stop.is_set():
            if module.double(4) != 8:
                wrong.append(1)

    caller = threading.Thread(target=call)
    caller.start()
    threads = [threading.Thread(target=come_and_go, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    caller.join()
    assert not wrong
    assert module.double is original
    assert rows(module) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_subscribe_and_leave(module):
    heard = []
    subscription = subscribe(target(module), noting, heard)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        module.double(1)
        subscription.close()
        with subscribe(target(module), noting, []):
            module.double(2)
        os.write(write, b"%d %s" % (len(heard), module.double.__code__.co_name.encode()))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == b"1 double"
    os.close(read)
    assert subscription.is_open and heard == []
    subscription.close()


def test_a_wrong_call_is_answered_with_the_name_of_the_function_that_was_called(module):
    def narrow(original, subscribers):
        def call(x):
            return original(x)

        return call

    def answer():
        with pytest.raises(TypeError) as raised:
            module.double()
        return str(raised.value)

    plain = answer()
    with subscribe(target(module), narrow, []):
        assert answer() == plain
