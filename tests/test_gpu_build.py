"""What `make gpu-test` needs, and what it reports if that is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".make"))

import gpu_test  # noqa: E402
import set_up  # noqa: E402
from obstacles import Obstacle  # noqa: E402

SOURCE = """    std::vector<const char*> layers;
    VkBool32 enable_best_practice = layer_settings;
    vk::LayerSettingEXT setting = {};
    vk::InstanceCreateInfo instance_create_info(vk::InstanceCreateFlags{}, &app_info, layers, extensions, &x);
    next();
"""


DISPATCH = """    if (!same) {
        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, n, infos.begin() };
        update({ write_descriptor_set }, {});
"""


def test_old_headers_are_not_asked_for_what_they_lack() -> None:
    text = gpu_test.for_old_headers(SOURCE)
    assert "LayerSetting" not in text and text.endswith("    next();\n")
    assert "instance_create_info({}, &app_info, layers, extensions);" in text


def test_a_descriptor_set_is_written_whole() -> None:
    """What an earlier shader had left in it, in memory long given back, ended lavapipe of Mesa 22.3."""
    text = gpu_test.for_old_drivers(DISPATCH)
    assert "0, 0, n," not in text and "every.fill(*" in text and "every.data() };" in text
    assert text.endswith("update({ write_descriptor_set }, {});\n")


def test_a_source_is_edited_once(tmp_path: Path) -> None:
    folder = tmp_path / gpu_test.BACK_END
    folder.mkdir(parents=True)
    (folder / "ggml-vulkan.cpp").write_text(SOURCE)
    (folder / "ggml-vulkan-common.h").write_text(DISPATCH)
    gpu_test.edit(tmp_path)
    written = {file: (file.read_text(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    gpu_test.edit(tmp_path)
    assert written == {file: (file.read_text(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.mark.parametrize("edited", gpu_test.EDITS.values())
def test_another_source_is_left_alone(edited: Callable[[str], str]) -> None:
    with pytest.raises(Obstacle, match="too old for llama.cpp's back end.*newer headers"):
        edited("int main() {}\n")


def test_the_software_device_is_the_only_one(tmp_path: Path) -> None:
    driver = tmp_path / "lvp_icd.x86_64.json"
    driver.touch()
    chosen = gpu_test.device({}, [tmp_path / "none", tmp_path])
    assert chosen["VK_ICD_FILENAMES"] == str(driver) and chosen["GGML_VK_VISIBLE_DEVICES"] == "0"
    assert gpu_test.device({"GGML_VK_VISIBLE_DEVICES": "1"}, []) == {}, "somebody has chosen"


def test_what_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Obstacle, match="no software Vulkan device.*apt install mesa-vulkan-drivers"):
        gpu_test.device({}, [tmp_path])
    with pytest.raises(Obstacle, match="glslc, which is not here.*apt install"):
        gpu_test.check_tools({"PATH": str(tmp_path)})
    (tmp_path / "glslc").touch(mode=0o755)
    with pytest.raises(Obstacle, match="needs Vulkan's and SPIR-V's headers.*apt install"):
        gpu_test.check_tools({"PATH": str(tmp_path), "CXX": str(tmp_path / "no-compiler")})


def test_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    spec = gpu_test.pinned((ROOT / "pyproject.toml").read_text(), gpu_test.LLAMA)
    (tmp_path / "ready").write_text(json.dumps(gpu_test.made(spec)))
    assert gpu_test.build(tmp_path, {"PATH": ""}) == tmp_path / "site"


def test_it_is_built_as_make_builds_and_with_vulkan() -> None:
    """Layers on other machines came to every build, and not to this one."""
    assert "-DGGML_RPC=on" in set_up.OPTIONS
    assert gpu_test.BUILT_WITH == f"{set_up.OPTIONS} -DGGML_VULKAN=ON"
