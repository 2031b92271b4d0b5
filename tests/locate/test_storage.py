"""Who wrote this memory last?"""

import torch

from stayfinite.locate.storage import Writers


def test_the_latest_writer_comes_first_and_others_stay_where_they_do_not_overlap():
    writers = Writers()
    x = torch.zeros(4, 3)
    writers.write(x, 1, whole=True)
    writers.write(x[2], 2, whole=False)
    assert writers.find(x) == [2, 1]
    assert writers.find(x[2]) == [2, 1]
    assert writers.find(x[0]) == [1]


def test_the_same_region_written_again_has_one_writer():
    writers = Writers()
    x = torch.zeros(3)
    writers.write(x, 1, whole=False)
    writers.write(x, 2, whole=False)
    assert writers.find(x) == [2]


def test_a_finite_write_forgets_what_it_covers_and_no_more():
    writers = Writers()
    x = torch.zeros(4, 3)
    writers.write(x[0], 1, whole=False)
    writers.write(x[3], 2, whole=False)
    writers.clear(x[:2], whole=False)
    assert writers.find(x) == [2]
    writers.clear(x, whole=True)
    assert writers.find(x) == []


def test_a_strided_finite_write_does_not_forget_its_neighbors():
    writers = Writers()
    x = torch.zeros(4, 4)
    writers.write(x[1], 1, whole=False)
    writers.clear(x[:, 0], whole=False)
    assert writers.find(x) == [1]


def test_other_memory_is_other_memory():
    writers = Writers()
    x, y = torch.zeros(3), torch.zeros(3)
    writers.write(x, 1, whole=True)
    assert writers.find(y) == []


def test_sparse_and_complex_memory():
    writers = Writers()
    x = torch.eye(3).to_sparse()
    writers.write(x, 1, whole=True)
    assert writers.find(x._values()) == [1]
    z = torch.zeros(2, dtype=torch.complex64)
    writers.write(z, 2, whole=True)
    assert writers.find(z.real) == [2]


def test_integers_and_empty_tensors_have_no_writers():
    writers = Writers()
    for x in (torch.zeros(2, dtype=torch.int64), torch.zeros(0), torch.zeros(2, device="meta")):
        writers.write(x, 1, whole=True)
        assert writers.find(x) == []
