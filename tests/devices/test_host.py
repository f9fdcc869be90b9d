import re
import subprocess

from gemmkit.devices import host


def test_host_environment_names_versions():
    found = host.host_environment()
    assert found["cores"] >= 1
    assert re.fullmatch(r"3\.\d+\.\d+.*", found["python"])
    assert found["cpu"]


def test_commit_marks_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))

    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    source = tmp_path / "src" / "pkg"
    source.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    assert host._commit(source) is None
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    clean = host._commit(source)
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "pyproject.toml").write_text("changed")
    assert host._commit(source) == clean + "+"


def test_missing_distribution_has_no_version():
    assert host.package_version("no-such-distribution-of-that-name") is None
    assert host.package_version("numpy")
