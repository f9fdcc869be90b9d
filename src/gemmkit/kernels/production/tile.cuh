// Template arguments that the host passes by name: `Tile{.BM = 128, .BN = 256, ...}`.
#pragma once

// Tiles of a block (BM x BN, BK along k), a warp and a thread, and how the mainloop goes about them.
// Where a thread's tile is not named, it is the tensor core's.
struct Tile {
  int BM = 0, BN = 0, BK = 0, WM = 0, WN = 0, TM = 1, TN = 1;
  int stages = 2;      // of the pipeline
  int slice_k = 1;     // groups of warps that share each step of k
  int interleave = 1;  // places in a step where its copies are issued
  int order = 1;       // of the multiply-adds, see outer_product(); with 4 more, B is read first
  int pad = 0;         // elements behind each line of a tile that is transposed on its way
  int map_k = 0;       // width of the copies' thread map along k, in elements
  int threads = 0;     // of a block
  int min_blocks = 1;  // that an SM is to hold
};

// Elements per access to global memory.
struct Access {
  int a = 1, b = 1, c = 1;
};

// Residue tiles: up to `width` rows and columns past the last whole tiles, a block's tile being
// width x length or the other way round, with a pipeline of its own. There are none if `width` is 0.
struct Residue {
  int width = 0, length = 0;
  int depth = 0, stages = 0;  // of the pipeline, along k
  int least_tile = 0;         // sides of whole tiles below this leave none
  bool split = false;         // whether the k of whole tiles is split
};

// How tiles are given to blocks, and how long sums grow.
struct Schedule {
  bool batched = false;  // several products
  int chunks = 1;        // of k, each accumulated apart
  int raster = 0;        // rows of tiles in a group that blocks go through column by column, or 0
  Residue residue = {};
};
