# ruff: noqa: E402, SIM115, UP020
"""Everything a script may do to files; prints what it sees of it. No torch."""

import bz2
import glob
import gzip
import io
import json
import logging
import lzma
import os
import pathlib
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import zipfile

P = pathlib.Path


def look(title):
    found = sorted(str(p) for p in P(".").rglob("*") if p.is_file())
    print(title, [(f, P(f).read_bytes()[:40]) for f in found if not f.endswith(".log")])


os.makedirs("out/deep", exist_ok=True)
os.makedirs("out/deep", exist_ok=True)
with open("out/deep/a.txt", "w") as f:
    f.write("one\n")
with open("keep.txt", "a") as f:
    f.write("appended\n")
with P("edit.txt").open("r+") as f:
    f.seek(0)
    f.write("X")
P("new.json").write_text(json.dumps({"a": 1}))
look("written")

print("size", os.path.getsize("keep.txt"), P("keep.txt").stat().st_size, os.path.exists("none"))
os.remove("gone.txt")
print("gone", os.path.exists("gone.txt"), P("gone.txt").exists(), "gone.txt" in os.listdir("."))
for wrong in (
    lambda: open("gone.txt"),
    lambda: os.remove("gone.txt"),
    lambda: os.mkdir("out"),
    lambda: open("nowhere/x", "w"),
    lambda: open("keep.txt", "x"),
):
    try:
        wrong()
        print("no error")
    except OSError as e:
        print(type(e).__name__)
P("gone.txt").write_text("back")
print("back", P("gone.txt").read_text())

os.replace("new.json", "newer.json")
os.rename("moved.txt", "out/moved.txt")
shutil.move("tree", "tree2")
shutil.copy("keep.txt", "out/copy.txt")
shutil.copytree("tree2", "tree3")
shutil.rmtree("tree3")
shutil.rmtree("doomed")
os.makedirs("doomed/again")
look("moved")
print("walk", [(d, sorted(s), sorted(f)) for d, s, f in sorted(os.walk("."))])
print("glob", sorted(glob.glob("*.txt")), sorted(P(".").glob("t*")))
with os.scandir(".") as entries:
    print(
        "scan", sorted((e.name, e.path, e.is_dir()) for e in entries if not e.name.endswith(".log"))
    )

with gzip.open("z.gz", "wt") as f:
    f.write("zip")
with bz2.open("z.bz2", "wt") as f:
    f.write("zip")
with lzma.open("z.xz", "wt") as f:
    f.write("zip")
with zipfile.ZipFile("z.zip", "w") as z:
    z.writestr("a", "b")
with tarfile.open("z.tar", "w") as t:
    t.add("keep.txt")
print("packed", zipfile.ZipFile("z.zip").namelist(), tarfile.open("z.tar").getnames())
for module in (gzip, bz2, lzma):
    with module.open({"gzip": "z.gz", "bz2": "z.bz2", "lzma": "z.xz"}[module.__name__], "rt") as f:
        print("packed", f.read())

base = sqlite3.connect("db.sqlite")
base.execute("create table t (x)")
base.commit()
base.close()
print("db", sqlite3.connect("db.sqlite").execute("select count(*) from sqlite_master").fetchone())
logging.basicConfig(filename="train.log")
logging.warning("hello")
fd = os.open("raw.bin", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"raw")
os.close(fd)
print("raw", P("raw.bin").read_bytes())
os.chdir("out")
print("cwd", os.path.basename(os.getcwd()), sorted(os.listdir(".")), P("../keep.txt").read_text())
P("here.txt").write_text("here")
os.chdir("..")
print("cwd", P("out/here.txt").read_text())
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", dir=folder) as f:
    f.write("x")
print("temp", os.path.exists(folder))
os.truncate("keep.txt", 3)
os.chmod("keep.txt", 0o600)
os.utime("keep.txt", (1, 1))
print("cut", P("keep.txt").read_text(), P("keep.txt").stat().st_mtime)
os.symlink("keep.txt", "link.txt")
print("link", P("link.txt").is_symlink(), os.readlink("link.txt"))
import helper

print("helper", helper.VALUE)
print("bytes", os.path.exists(b"keep.txt"), io.open("keep.txt").read(), file=sys.stdout)
