"""A picture of a game as the `crafter` package draws it, from a full state alone and apart from the game.

    picture(engine.canonical_bytes())                   64×64, what the package's own step returns
    picture(engine.canonical_state(), size=(320, 256))  any width and height
    png_bytes(…)                                        the same as a file

A picture is the 9×7 tiles around the player over two rows of nine items, in the package's textures. It is
pixel for pixel the package's, also at night, when the package covers the map with noise: its 64×64 picture
takes the numbers from the game's generator as the last thing in each step. They are found again in the
state, by running the generator's recurrence backwards (in a game without night draws these are older
numbers of the same generator, and do as well). At other sizes the numbers are those that the package's
`render(size)` would take next, from a copy of the generator. No game is ever touched, and the same state
always gives the same picture. Or hand in numbers of your own (`noise`).

The only module that needs Pillow; nothing on the way of an episode imports it.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from task_app.apps.crafter.data import package_folder
from task_app.apps.crafter.engine.check import check_state
from task_app.apps.crafter.engine.protocol import AREA, ARROW, COW, PLANT, RIPE_GROWN, SKELETON, VIEW, ZOMBIE
from task_app.apps.crafter.engine.rules import ITEMS, MATERIALS, daylight
from task_app.core.errors import EnvError

__all__ = ["LEAST_SIDE", "MOST_SIDE", "Noise", "Picture", "picture", "png_bytes"]

Picture = NDArray[np.uint8]
"""(height, width, 3), red, green, blue."""
Noise = NDArray[np.floating[Any]] | np.random.RandomState | random.Random
"""Numbers from 0 to 1 for each pixel of the map as [x, y], (63, 49) at 64×64; or a generator, which is copied."""
Floats = NDArray[np.floating[Any]]
Words = NDArray[np.integer[Any]]
"""32 bits each, unsigned."""
Unit = tuple[int, int]
"""Width and height of a tile in pixels."""

LEAST_SIDE, MOST_SIDE = 18, 2048
"""In pixels. On smaller pictures the package's digits are less than a pixel wide, and it fails."""
GRID = 9
"""Tiles across and down a picture: the map, and below it the items."""
STOCK_SIZE = (64, 64)
OUTSIDE = 127
"""The grey beyond the world's edge."""
DARK, NIGHT_COLOR, SLEEP_COLOR = 0.5, (0, 16, 64), (0, 0, 16)

PLAYER_TEXTURES = {(-1, 0): "player-left", (1, 0): "player-right", (0, -1): "player-up", (0, 1): "player-down"}
ARROW_TEXTURES = {(-1, 0): "arrow-left", (1, 0): "arrow-right", (0, -1): "arrow-up", (0, 1): "arrow-down"}
TEXTURES = {COW: "cow", ZOMBIE: "zombie", SKELETON: "skeleton"}


def picture(state: bytes | Mapping[str, Any], size: int | tuple[int, int] = 64, noise: Noise | None = None) -> Picture:
    """Draw a state, given as canonical bytes or in plain values (`protocol.decode_state`).

    `size` is the side or (width, height); `noise` counts only at night, while daylight is below .5.
    Raises EnvError if the state is impossible, or the size outside the limits, or the noise misshapen.
    """
    plain = check_state(state) if isinstance(state, bytes) else state
    width, height = _checked(size)
    unit = width // GRID, height // GRID
    pixels = np.zeros((width, height, 3), np.uint8)
    left, top = (width - unit[0] * GRID) // 2, (height - unit[1] * GRID) // 2
    middle, bottom, right = top + unit[1] * VIEW[1], top + unit[1] * GRID, left + unit[0] * GRID
    ground = _map(plain, unit)
    light = daylight()[plain["step"]]
    dots = _dots(plain, (width, height), ground.shape[:2], noise) if light < DARK else None
    pixels[left:right, top:middle] = _seen(ground, light, dots, bool(plain["player"]["sleeping"]))
    pixels[left:right, middle:bottom] = _items(plain["inventory"], unit)
    return np.ascontiguousarray(pixels.transpose(1, 0, 2))


def png_bytes(pixels: Picture) -> bytes:
    """The picture as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _checked(size: int | tuple[int, int]) -> tuple[int, int]:
    width, height = size if isinstance(size, tuple) else (size, size)
    for side in (width, height):
        if not LEAST_SIDE <= side <= MOST_SIDE:
            raise EnvError(f"a picture's sides must be {LEAST_SIDE} to {MOST_SIDE} pixels, got {width}×{height}")
    return width, height


# Textures. All arrays are [x, y, colour], as the package has them, until the picture is finished.


@cache
def _original(name: str) -> Picture:
    """A texture as the `crafter` package ships it, decoded once; the package itself is not imported."""
    with Image.open(package_folder() / "assets" / f"{name}.png") as image:
        return np.asarray(image).transpose(1, 0, 2)


@lru_cache(maxsize=512)
def _texture(name: str, size: tuple[int, int]) -> Picture:
    image = Image.fromarray(np.ascontiguousarray(_original(name)))
    return np.asarray(image.resize((size[1], size[0]), resample=Image.Resampling.NEAREST))


@lru_cache(maxsize=8)
def _ground_tiles(unit: Unit) -> Picture:
    """One tile of each material by its number, the one beyond the world's edge last; no tile is transparent."""
    tiles = [_texture(name, unit)[..., :3] for name in ("unknown", *MATERIALS)]
    return np.stack([*tiles, np.full((*unit, 3), OUTSIDE, np.uint8)])


@lru_cache(maxsize=512)
def _tile(name: str, material: int, unit: Unit) -> Picture:
    """A thing on a material."""
    return _over(_ground_tiles(unit)[material], _texture(name, unit))


@lru_cache(maxsize=512)
def _cell(index: int, count: int, unit: Unit) -> Picture:
    """An item and its count, in its place among the items."""
    cell = np.zeros((*unit, 3), np.uint8)
    column, row = index % GRID, index // GRID
    for name, shift, share in ((ITEMS[index], 0.1, 0.8), (str(count) if count < 10 else "unknown", 0.4, 0.6)):
        texture = _texture(name, (int(share * unit[0]), int(share * unit[1])))
        x = int(column * unit[0] + shift * unit[0]) - column * unit[0]
        y = int(row * unit[1] + shift * unit[1]) - row * unit[1]
        part = cell[x : x + texture.shape[0], y : y + texture.shape[1]]
        part[:] = _over(part, texture)
    return cell


def _over(below: Picture, texture: Picture) -> Picture:
    """A texture drawn over something, with the package's arithmetic in single precision."""
    if texture.shape[-1] == 3:
        return texture
    alpha = texture[..., 3:].astype(np.float32) / 255
    color = texture[..., :3].astype(np.float32) / 255
    blended = alpha * color + (1 - alpha) * (below.astype(np.float32) / 255)
    return (255 * blended).astype(np.uint8)


# The two parts of a picture


def _map(state: Mapping[str, Any], unit: Unit) -> Picture:
    """The tiles around the player and what stands on them, in full light."""
    columns, rows = VIEW
    player, margin = state["player"], max(VIEW)
    world = np.full((AREA + 2 * margin, AREA + 2 * margin), len(MATERIALS) + 1, np.uint8)
    world[margin:-margin, margin:-margin] = np.frombuffer(state["materials"], np.uint8).reshape(AREA, AREA)
    left, top = player["x"] - columns // 2, player["y"] - rows // 2
    seen = world[left + margin : left + margin + columns, top + margin : top + margin + rows]
    tiles = _ground_tiles(unit)[seen]
    for thing in state["objects"]:
        x, y = thing[1] - left, thing[2] - top
        if 0 <= x < columns and 0 <= y < rows:
            tiles[x, y] = _tile(_texture_of(thing), int(seen[x, y]), unit)
    x, y = columns // 2, rows // 2
    asleep, facing = player["sleeping"], (player["facing_x"], player["facing_y"])
    tiles[x, y] = _tile("player-sleep" if asleep else PLAYER_TEXTURES[facing], int(seen[x, y]), unit)
    return tiles.transpose(0, 2, 1, 3, 4).reshape(columns * unit[0], rows * unit[1], 3)


def _texture_of(thing: tuple[int, ...]) -> str:
    kind, _, _, _, counter, dx, dy = thing
    if kind == PLANT:
        return "plant-ripe" if counter > RIPE_GROWN else "plant"
    return ARROW_TEXTURES[dx, dy] if kind == ARROW else TEXTURES[kind]


def _items(inventory: tuple[int, ...], unit: Unit) -> Picture:
    columns, rows = GRID, GRID - VIEW[1]
    cells = np.zeros((columns, rows, *unit, 3), np.uint8)
    for index, count in enumerate(inventory):
        if count > 0:
            cells[index % columns, index // columns] = _cell(index, count, unit)
    return cells.transpose(0, 2, 1, 3, 4).reshape(columns * unit[0], rows * unit[1], 3)


# Light. The order of the operations is the package's, so that every rounding is, too.


def _seen(ground: Picture, light: float, dots: Floats | None, asleep: bool) -> NDArray[Any]:
    """The map in the light of the hour, with noise in the dark; through closed eyes if asleep."""
    night: NDArray[Any] = ground
    if dots is not None:
        mask = 2 * (DARK - light) * _vignette(ground.shape[:2])[..., None]
        night = (1 - mask) * ground + mask * (32 + 95 * dots[..., None])
    night = _tinted(_faded(night, 0.4), NIGHT_COLOR)
    seen = light * ground + (1 - light) * night
    return _tinted(_faded(seen, 0.0), SLEEP_COLOR) if asleep else seen


def _faded(pixels: NDArray[Any], color: float) -> Picture:
    return np.asarray(ImageEnhance.Color(Image.fromarray(pixels.astype(np.uint8))).enhance(color))


def _tinted(pixels: Picture, color: tuple[int, int, int]) -> Floats:
    return (1 - 0.5) * pixels + 0.5 * np.array(color)


@lru_cache(maxsize=8)
def _vignette(shape: tuple[int, int]) -> Floats:
    """0 in the middle, nearly 1 in the corners."""
    xs, ys = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]))
    return 1 - np.exp(-0.5 * (xs**2 + ys**2) / (0.5**2)).T


# The night's numbers


def _dots(state: Mapping[str, Any], size: tuple[int, int], shape: tuple[int, int], noise: Noise | None) -> Floats:
    """A number from 0 to 1 for each pixel of the map."""
    if noise is None:
        key, position = np.array(state["rng_key"], np.uint32), int(state["rng_pos"])
        if size == STOCK_SIZE:
            return _doubles(_words_before(key, position, 2 * shape[0] * shape[1])).reshape(shape)
        return _generator(key, position).uniform(size=shape)
    if isinstance(noise, random.Random):
        *key, position = noise.getstate()[1]
        return _generator(np.array(key, np.uint32), position).uniform(size=shape)
    if isinstance(noise, np.random.RandomState):
        copied = np.random.RandomState(0)
        copied.set_state(noise.get_state())
        return copied.uniform(size=shape)
    if noise.shape != shape:
        raise EnvError(f"noise for this size must have the shape {shape}, got {noise.shape}")
    return noise


def _generator(key: NDArray[np.uint32], position: int) -> np.random.RandomState:
    generator = np.random.RandomState(0)
    generator.set_state(("MT19937", key, position, 0, 0.0))
    return generator


def _words_before(key: Words, position: int, count: int) -> Words:
    """The last `count` words that an MT19937 generator gave before it came into this state, oldest first.

    The sequence obeys x[k+624] = x[k+397] ^ f(y[k]), where y[k] is the highest bit of x[k] and the others of
    x[k+1]. f can be undone: two y's give x[k] from later words, up to 396 of them at once.
    """
    missing = max(0, count - position)
    x = np.concatenate((np.zeros(missing, np.uint32), key))
    for end in range(missing, 0, -396):
        start = max(0, end - 396)
        y = _unmixed(x[start + 623 : end + 624], x[start + 396 : end + 397])
        x[start:end] = (y[1:] & 0x80000000) | (y[:-1] & 0x7FFFFFFF)
    return _tempered(x[missing + position - count : missing + position])


def _unmixed(new: Words, old: Words) -> Words:
    """y of x[k+624] and x[k+397]. Whether y was odd shows in the highest bit, which only the constant can set."""
    mixed = new ^ old
    odd = mixed >> 31
    return ((mixed ^ (odd * np.uint32(0x9908B0DF))) << 1) | odd


def _tempered(words: Words) -> Words:
    """What the generator gives out for these words of its sequence."""
    words = words ^ (words >> 11)
    words ^= (words << 7) & 0x9D2C5680
    words ^= (words << 15) & 0xEFC60000
    return words ^ (words >> 18)


def _doubles(words: Words) -> Floats:
    """Numbers from 0 to 1 of two words each, as NumPy and `random.Random` make them."""
    return ((words[::2] >> 5) * 67108864.0 + (words[1::2] >> 6)) / 9007199254740992.0
