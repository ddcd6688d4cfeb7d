import pytest

from legroom.errors import UnknownNameError, UsageError
from legroom.registry import Registry


class Apple:
    name = "apple"


class Pear:
    name = "pear"


def test_entries_keep_their_order():
    registry = Registry("fruit", (Pear, Apple))
    assert registry.names() == ("pear", "apple")
    assert list(registry) == [Pear, Apple]
    assert registry.get("apple") is Apple


def test_register_is_a_decorator():
    registry = Registry("fruit")

    @registry.register
    class Plum:
        name = "plum"

    assert registry.get("plum") is Plum


def test_registering_twice_is_harmless():
    registry = Registry("fruit", (Apple,))
    assert registry.register(Apple) is Apple
    assert registry.names() == ("apple",)


def test_a_taken_name_is_refused():
    class Other:
        name = "apple"

    registry = Registry("fruit", (Apple,))
    with pytest.raises(UsageError, match=r"fruit name 'apple' is already used by .*Apple"):
        registry.register(Other)
    assert registry.get("apple") is Apple


def test_unknown_names_come_with_a_hint():
    registry = Registry("fruit", (Apple, Pear))
    with pytest.raises(
        UnknownNameError,
        match=r"^unknown fruit 'appel'; available: apple, pear\. Did you mean 'apple'\?$",
    ):
        registry.get("appel")
    with pytest.raises(UnknownNameError, match=r"^unknown fruit 'xyz'; available: apple, pear$"):
        registry.get("xyz")


def test_unregistered_entries_are_gone():
    registry = Registry("fruit", (Apple, Pear))
    registry.unregister("apple")
    assert registry.names() == ("pear",)
    with pytest.raises(UnknownNameError, match="unknown fruit 'apple'"):
        registry.unregister("apple")


def test_nameless_entries_are_our_bug():
    with pytest.raises(AssertionError, match="bug in legroom"):
        Registry("fruit", (object,))
