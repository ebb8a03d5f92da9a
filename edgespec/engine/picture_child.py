"""The child process that decodes pictures: they come from strangers, and may be made to take all memory."""

import base64
import struct
import warnings
from io import BytesIO

from edgespec.errors import SettingError
from edgespec.system.limited_child import answer_within

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "AVIF", "BMP")
MOST_PIXELS = 64_000_000  # that a file may say it has
LONGEST_SIDE = 4096  # pixels; a larger picture is made smaller, as every projector would


def decoded(file: bytes) -> str:
    """Returns width, height and, in base64, the RGB bytes of a picture, upright. Raises SettingError."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    bomb = Image.DecompressionBombError

    warnings.simplefilter("ignore")  # of doubtful metadata
    try:
        with Image.open(BytesIO(file), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise SettingError(
                    f"the picture has {image.width:,} x {image.height:,} pixels: make it smaller than "
                    f"{MOST_PIXELS // 10**6} million"
                )
            image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))  # a JPEG can be read at half its size
            upright: Image.Image = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):
                upright = upright.point(lambda value: value / 256)
            upright = upright.convert("RGB")
    except UnidentifiedImageError:
        raise SettingError("the picture is no JPEG, PNG, WebP, GIF, AVIF or BMP file") from None
    except (OSError, SyntaxError, ValueError, LookupError, TypeError, struct.error, bomb):
        # of a damaged file; another fault ends this process, which says the same
        raise SettingError("the picture is damaged") from None
    if max(upright.size) > LONGEST_SIDE:
        upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return f"{upright.width} {upright.height} {base64.b64encode(upright.tobytes()).decode()}"


if __name__ == "__main__":
    answer_within(decoded, SettingError)
