"""Draw the shapes that the projector learns to see, and write what is asked and answered about one."""

import random
from io import BytesIO
from math import cos, pi, sin

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
COLOURS: dict[str, Colour] = {
    "red": (215, 25, 30),
    "orange": (250, 140, 10),
    "yellow": (250, 225, 40),
    "green": (35, 150, 55),
    "blue": (35, 75, 205),
    "purple": (125, 40, 150),
    "pink": (250, 135, 185),
    "black": (18, 18, 18),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
PAD = (127, 127, 127)  # around a picture that is not square, as llama.cpp has it for this kind
# An answer begins with a word of its question: the target learned to copy, so it knows which is due.
ASKED = {
    "The colour is {colour}.": ("What colour is it?", "Which colour is it?", "What colour is the {shape}?"),
    "The color is {colour}.": ("What color is it?", "Which color is it?"),
    "The shape is a {shape}.": ("What shape is it?", "Which shape is it?", "What shape is in the picture?"),
    "It is {a} {colour} {shape}.": (
        "What is it?",
        "What is this?",
        "What do you see?",
        "Describe the picture.",
    ),
}


def outline(shape: str) -> list[tuple[float, float]]:
    """Return the corners of a shape in the unit circle."""
    if shape == "square":
        return [(0.72, 0.72), (-0.72, 0.72), (-0.72, -0.72), (0.72, -0.72)]
    if shape == "cross":
        quarter = [(0.95, 0.3), (0.3, 0.3), (0.3, 0.95)]
        return [_turned(point, i * pi / 2) for i in range(4) for point in quarter]
    if shape == "heart":
        angles = [i * pi / 24 for i in range(48)]
        return [
            (sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)) / 17) for t in angles
        ]
    n = {"circle": 60, "triangle": 3, "star": 10}[shape]
    far = [0.42 if shape == "star" and i % 2 else 1.0 for i in range(n)]
    return [(r * sin(2 * pi * i / n), -r * cos(2 * pi * i / n)) for i, r in enumerate(far)]


def _turned(point: tuple[float, float], angle: float) -> tuple[float, float]:
    x, y = point
    return x * cos(angle) - y * sin(angle), x * sin(angle) + y * cos(angle)


def _near(rng: random.Random, colour: Colour, by: int) -> Colour:
    red, green, blue = (max(0, min(255, part + rng.randint(-by, by))) for part in colour)
    return red, green, blue


def draw(rng: random.Random, colour: str, shape: str) -> Image.Image:
    """Return a picture of one shape on a plain, uneven or noisy ground of another colour."""
    side = rng.randrange(72, 220)
    size = side, round(side * rng.choice([1, 1, 0.75, rng.uniform(0.6, 1.6)]))
    inner = _near(rng, COLOURS[colour], 14)
    grounds = [name for name in COLOURS if name != colour] if rng.random() < 0.4 else ["white", "black"]
    grounds = [name for name in grounds if name != colour and {name, colour} != {"red", "orange"}]
    ground = _near(rng, COLOURS[rng.choice(grounds)], 12)
    if rng.random() < 0.25:
        grey = rng.choice([rng.randrange(60, 110), rng.randrange(140, 200)])
        ground = _near(rng, (grey, grey, grey), 8)
    image = Image.new("RGB", (2 * size[0], 2 * size[1]), ground)
    radius = rng.uniform(0.24, 0.48) * 2 * min(size)
    x, y = (rng.uniform(radius, 2 * side - radius) for side in size)
    by, wide = rng.uniform(-0.35, 0.35), rng.uniform(0.88, 1.0)
    corners = [_turned((a * wide, b), by) for a, b in outline(shape)]
    points = [(x + radius * a, y + radius * b) for a, b in corners]
    edge = ImageDraw.Draw(image)
    edge.polygon(points, fill=inner)
    if rng.random() < 0.2:
        edge.line([*points, points[0]], fill=(0, 0, 0) if sum(inner) > 200 else (255, 255, 255), width=4)
    image = image.resize(size, Image.Resampling.BILINEAR)
    if rng.random() < 0.15:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 1.5)))
    if rng.random() < 0.3:
        file = BytesIO()
        image.save(file, "JPEG", quality=rng.randrange(40, 95))
        image = Image.open(file).convert("RGB")
    return image


def pixels(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Return the pixels that llama.cpp hands to the projector: (side, side, 3)."""
    scale = min(side / image.width, side / image.height)
    width, height = (min(side, -int(-part * scale // 1)) for part in image.size)
    padded = Image.new("RGB", (side, side), PAD)
    fitted = image.resize((width, height), Image.Resampling.BICUBIC)
    padded.paste(fitted, ((side - width) // 2, (side - height) // 2))
    return np.asarray(padded, np.uint8)


def talk(rng: random.Random, colour: str, shape: str) -> list[tuple[str, str]]:
    """Return one or two questions about a picture, with their answers."""
    words = {"colour": colour, "shape": shape, "a": "an" if colour[0] in "aeiou" else "a"}
    found = []
    for answer in rng.choices(list(ASKED), (3, 2, 4, 3), k=rng.choice([1, 1, 1, 2])):
        question = rng.choice(ASKED[answer]).format(shape=rng.choice([shape, "shape"]))
        found.append((_as_typed(rng, question), answer.format(**words)))
    first, rest = found[0], found[1:]
    return [(_named(rng, first[0]), first[1]), *rest]


def _as_typed(rng: random.Random, question: str) -> str:
    return rng.choice([question, question, question.lower(), question.rstrip("?.")])


def _named(rng: random.Random, question: str) -> str:
    """Return a question as EdgeSpec's chat sends it, where the name of a file is in it; or as it is."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_-"
    name = "".join(rng.choices(letters, k=rng.randrange(1, 10))) + rng.choice([".png", ".jpg", ".webp"])
    mention = rng.choice([f"@{name}", f"@{rng.choice(['/tmp/', '~/', 'pictures/'])}{name}", f'@"{name}"'])
    kind = rng.random()
    if kind < 0.65:
        return question
    return f"{question} {mention}\n\n({name})" if kind < 0.9 else f"{mention} {question}\n\n({name})"
