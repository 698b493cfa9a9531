"""Three-dimensional OpenSimplex noise for whole arrays, after Kurt Spencer's published algorithm (2014).

A point lies in one of three regions of its cell of the simplectic honeycomb: the tetrahedron at (0, 0, 0),
the tetrahedron at (1, 1, 1), or the octahedron between them. Every region has fixed vertices that
contribute, and two more that depend on which vertices are closest: `case` numbers the possibilities.
Every operation happens in the order in which the package's `opensimplex` does it for a single point,
so results are the same to the last bit. Knows nothing of the game.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Simplex"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STRETCH = -1.0 / 6
SQUISH = 1.0 / 3
NORM = 103

_SIGNED_AXES = [(x, y, z) for z in (1, -1) for y in (1, -1) for x in (-1, 1)]
_LONG_AXES = [[(11, 4, 4)[axis - long] for axis in range(3)] for long in range(3)]
GRADIENTS = np.array(
    [[sign * size for sign, size in zip(signs, long, strict=True)] for signs in _SIGNED_AXES for long in _LONG_AXES],
    np.float64,
)
"""The 24 directions to the vertices of a rhombicuboctahedron: signs of (11, 4, 4), (4, 11, 4), (4, 4, 11)."""

_LCG, _LCG_ADD = 6364136223846793005, 1442695040888963407


def permutation(seed: int) -> list[int]:
    """The numbers 0 to 255 shuffled by a 64-bit linear congruential generator."""
    source, perm = list(range(256)), [0] * 256
    for _ in range(3):
        seed = _int64(seed * _LCG + _LCG_ADD)
    for last in range(255, -1, -1):
        seed = _int64(seed * _LCG + _LCG_ADD)
        chosen = (seed + 31) % (last + 1)
        perm[last] = source[chosen]
        source[chosen] = source[last]
    return perm


def _int64(value: int) -> int:
    """The value in 64 bits with sign, as overflow leaves it."""
    return (value + 2**63) % 2**64 - 2**63


# A vertex: its lattice offset from the cell's origin, and per axis what to subtract from the point's distance
# to that origin, in three roundings: `a`, then `b` (a multiple of SQUISH), then `c`.

Axis = tuple[int, float, float, float]
"""(offset, a, b, c)"""
Vertex = tuple[Axis, Axis, Axis]


def _vertex(offsets: tuple[int, ...], squish: int, *, last: int = 0, on: int = -1) -> Vertex:
    """`last`: the part of the offset on axis `on` that is subtracted after the squish."""
    parts = [(last if axis == on else 0) for axis in range(3)]
    x, y, z = (
        (offset, float(offset - part), squish * SQUISH, float(part))
        for offset, part in zip(offsets, parts, strict=True)
    )
    return x, y, z


def _with(offsets: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*offsets[:axis], value, *offsets[axis + 1 :])


ORIGIN, X, Y, Z = (_vertex(at, sum(at)) for at in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)))
XY, XZ, YZ, XYZ = (_vertex(at, sum(at)) for at in ((1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)))

# The two extra vertices. A corner of the cell is three bits (1: x, 2: y, 4: z), as in the published code.

_ONE_BIT, _TWO_BITS = (1, 2, 4), (3, 5, 6)
_NOWHERE = (_vertex((9, 9, 9), 0), _vertex((9, 9, 9), 0))


def _bits(corner: int) -> tuple[int, int, int]:
    return corner & 1, corner >> 1 & 1, corner >> 2 & 1


def _origin_extra(case: int) -> tuple[Vertex, Vertex]:
    """One bit: the closest are (0, 0, 0) and this corner. Two bits: this is the sum of the two closest."""
    at = _bits(case)
    if case in _ONE_BIT:
        low, high = (axis for axis in range(3) if not at[axis])
        return _vertex(_with(at, low, -1), 0), _vertex(_with(at, high, -1), 0)
    return _vertex(at, 2), _vertex(_with(at, at.index(0), -1), 1)


def _opposite_extra(case: int) -> tuple[Vertex, Vertex]:
    """Two bits: the closest are (1, 1, 1) and this corner. One bit: this is what the two closest share."""
    at = _bits(case)
    if case in _TWO_BITS:
        low, high = (axis for axis in range(3) if at[axis])
        first, second = (_vertex(_with(at, axis, 2), 3, last=1, on=1 if axis == 1 else -1) for axis in (low, high))
        return first, second
    return _vertex(at, 1), _vertex(_with(at, at.index(1), 2), 2)


def _middle_extra(case: int) -> tuple[Vertex, Vertex]:
    """One bit: both closest on the far side share it. Two bits: the sum of both on the near side.
    Else 8 * the far one + the near one."""
    if case in _ONE_BIT:
        at = _bits(case)
        return XYZ, _vertex(_with((0, 0, 0), at.index(1), 2), 2)
    if case in _TWO_BITS:
        return ORIGIN, _vertex(_with((1, 1, 1), _bits(case).index(0), -1), 1)
    far, near = _bits(case >> 3), _bits(case & 7)
    axis = near.index(1)
    return _vertex(_with((1, 1, 1), far.index(0), -1), 1), _vertex(_with((0, 0, 0), axis, 2), 2, last=2, on=axis)


ExtraTable = list[list[tuple[Ints, Floats, Floats, Floats]]]
"""Of both extra vertices, per axis: offset, a, b and c by case."""


def _table(extra: Callable[[int], tuple[Vertex, Vertex]], cases: Collection[int]) -> ExtraTable:
    rows = [extra(case) if case in cases else _NOWHERE for case in range(max(cases) + 1)]
    return [
        [
            (
                np.array([row[which][axis][0] for row in rows], np.int64),
                *(np.array([row[which][axis][part] for row in rows]) for part in (1, 2, 3)),
            )
            for axis in range(3)
        ]
        for which in range(2)
    ]  # pyright: ignore[reportReturnType]


_CORNERS = (*_ONE_BIT, *_TWO_BITS)
_ORIGIN_TABLE = _table(_origin_extra, _CORNERS)
_OPPOSITE_TABLE = _table(_opposite_extra, _CORNERS)
_MIDDLE_TABLE = _table(_middle_extra, {*_CORNERS, *(8 * far + near for far in _TWO_BITS for near in _ONE_BIT)})


# Which extra vertices a point has, from its place (x, y, z) within the cell


def _origin_case(x: Floats, y: Floats, z: Floats, total: Floats) -> Ints:
    swap_b = (x >= y) & (z > y)
    swap_a = (x < y) & (z > x)
    a, a_score = np.where(swap_a, 4, 1), np.where(swap_a, z, x)
    b, b_score = np.where(swap_b, 4, 2), np.where(swap_b, z, y)
    rest = 1 - total
    closest = np.where(b_score > a_score, b, a)
    return np.where((rest > a_score) | (rest > b_score), closest, a | b)


def _opposite_case(x: Floats, y: Floats, z: Floats, total: Floats) -> Ints:
    swap_b = (x <= y) & (z < y)
    swap_a = (x > y) & (z < x)
    a, a_score = np.where(swap_a, 3, 6), np.where(swap_a, z, x)
    b, b_score = np.where(swap_b, 3, 5), np.where(swap_b, z, y)
    rest = 3 - total
    closest = np.where(b_score < a_score, b, a)
    return np.where((rest < a_score) | (rest < b_score), closest, a & b)


def _middle_case(x: Floats, y: Floats, z: Floats, total: Floats) -> Ints:
    """Of each pair of opposite corners the closer one; the least close of the three pairs is left out."""
    del total
    p1, p2, p3 = x + y, x + z, y + z
    a_far, b_far, c_far = p1 > 1, p2 > 1, p3 > 1
    a, a_score = np.where(a_far, 3, 4), np.where(a_far, p1 - 1, 1 - p1)
    b, b_score = np.where(b_far, 5, 2), np.where(b_far, p2 - 1, 1 - p2)
    c, c_score = np.where(c_far, 6, 1), np.where(c_far, p3 - 1, 1 - p3)
    for_a = (a_score <= b_score) & (a_score < c_score)
    for_b = (a_score > b_score) & (b_score < c_score)
    a, a_far = np.where(for_a, c, a), np.where(for_a, c_far, a_far)
    b, b_far = np.where(for_b, c, b), np.where(for_b, c_far, b_far)
    mixed = np.where(a_far, 8 * a + b, 8 * b + a)
    return np.where(a_far == b_far, np.where(a_far, a & b, a | b), mixed)


_REGIONS = (
    ((ORIGIN, X, Y, Z), _origin_case, _ORIGIN_TABLE),
    ((XY, XZ, YZ, XYZ), _opposite_case, _OPPOSITE_TABLE),
    ((X, Y, Z, XY, XZ, YZ), _middle_case, _MIDDLE_TABLE),
)
"""The fixed vertices in the order of their summation, the case of a point, the extra vertices by case."""


BLOCK = 4096
"""Points computed at a time, so that the arrays stay in the processor's cache."""


class Simplex:
    """The noise of one seed."""

    def __init__(self, seed: int) -> None:
        perm = np.array(permutation(seed), np.int64)
        self._perm = perm
        self._gradients = [np.ascontiguousarray(axis) for axis in GRADIENTS[perm % len(GRADIENTS)].T]

    def noise3(self, x: Floats, y: Floats, z: Floats) -> Floats:
        """The noise at each point (x[i], y[i], z[i]), one-dimensional arrays; bits as the package's `noise3`."""
        value = np.empty_like(x)
        for start in range(0, len(x), BLOCK):
            block = slice(start, start + BLOCK)
            value[block] = self._block(x[block], y[block], z[block])
        return value

    def _block(self, x: Floats, y: Floats, z: Floats) -> Floats:
        stretch = (x + y + z) * STRETCH
        stretched = (x + stretch, y + stretch, z + stretch)
        cell = [np.floor(axis) for axis in stretched]
        squish = (cell[0] + cell[1] + cell[2]) * SQUISH
        inside = [axis - base for axis, base in zip(stretched, cell, strict=True)]
        from_origin = [axis - (base + squish) for axis, base in zip((x, y, z), cell, strict=True)]
        lattice = [base.astype(np.int64) for base in cell]
        total = inside[0] + inside[1] + inside[2]
        near, far = total <= 1, total >= 2
        value = np.empty_like(x)
        for where, (vertices, case_of, extra) in zip((near, far, ~(near | far)), _REGIONS, strict=True):
            at = np.flatnonzero(where)
            points = _Points(self._perm, [d.take(at) for d in from_origin], [base.take(at) for base in lattice])
            x_in, y_in, z_in = (axis.take(at) for axis in inside)
            case = case_of(x_in, y_in, z_in, total.take(at))
            value[at] = self._sum(points, vertices, case, extra)
        return value / NORM

    def _sum(self, points: _Points, vertices: tuple[Vertex, ...], case: Ints, extra: ExtraTable) -> Floats:
        value = np.zeros(len(case))
        for vertex in vertices:
            offsets = [axis[0] for axis in vertex]
            value += self._contribution([points.distance(n, axis) for n, axis in enumerate(vertex)], offsets, points)
        for table in extra:
            offsets = [axis[0].take(case) for axis in table]
            distances = [
                points.from_origin[n] - a.take(case) - b.take(case) - c.take(case)
                for n, (_, a, b, c) in enumerate(table)
            ]
            value += self._contribution(distances, offsets, points)
        return value

    def _contribution(self, distances: Sequence[Floats], offsets: Sequence[Any], points: _Points) -> Floats:
        """What one vertex (offsets are numbers, or arrays: another vertex per point) adds to each point; often 0."""
        dx, dy, dz = distances
        weight = 2 - dx * dx - dy * dy - dz * dz
        np.maximum(weight, 0, out=weight)
        weight *= weight
        weight *= weight
        hashed = points.hash(*offsets)
        gx, gy, gz = (axis.take(hashed) for axis in self._gradients)
        return weight * (gx * dx + gy * dy + gz * dz)


class _Points:
    """Points of one region: distances to vertices and hashes of lattice corners, each computed once."""

    def __init__(self, perm: Ints, from_origin: list[Floats], lattice: list[Ints]) -> None:
        self.from_origin = from_origin
        self._perm = perm
        self._lattice = lattice
        self._distances: dict[tuple[int, Axis], Floats] = {}
        self._hashes: dict[tuple[int, ...], Ints] = {}

    def distance(self, axis: int, vertex: Axis) -> Floats:
        """How far the points are from a fixed vertex along one axis."""
        key = (axis, vertex)
        if key not in self._distances:
            _, a, b, c = vertex
            self._distances[key] = self.from_origin[axis] - a - b - c
        return self._distances[key]

    def hash(self, i: Any, j: Any, k: Any) -> Ints:
        """Which of 256 gradients the corner (i, j, k) of each point's cell has."""
        return (self._hash_xy(i, j) + (self._lattice[2] + k)) & 255

    def _hash_xy(self, i: Any, j: Any) -> Ints:
        perm, (x, y, _) = self._perm, self._lattice
        if not isinstance(i, int):
            return perm.take((perm.take((x + i) & 255) + (y + j)) & 255)
        if (i,) not in self._hashes:
            self._hashes[(i,)] = perm.take((x + i) & 255)
        if (i, j) not in self._hashes:
            self._hashes[(i, j)] = perm.take((self._hashes[(i,)] + (y + j)) & 255)
        return self._hashes[(i, j)]
