// Sums of products that are stored right from the registers of those who multiplied them (compute capability 9.0): bytes
// of bytes, halves of halves. The columns of a product are channels in such an order that a thread has RUN neighbouring
// ones of every four times as many, of a row, which it finishes and stores at once; what the epilogue knows of them it
// reads once and keeps.
//
// Constants from the host: BYTES (of an input), RESULT_BYTES (1, 2 or 4, floats); BN PIXELS QUADS; RUN (channels: 8 or 16 bytes); PER_CHANNEL(each) and PER_PIXEL(each), what the epilogue
// reads: each(type, name) for constants of the channels, each(name, pitch, offset) for values like the results, in quads; if it
// reads bytes of which a pixel has one, PER_PLACE(each), each(type, name, pitch, offset); if it looks bytes up, PER_TABLE(each),
// each(type, name);
// FETCHED_AT, perhaps: where threads of store_one_by_one() have what is like the results, a single value of 16 bytes a run, brought
// to shared memory; RESULT_PITCH RESULT_OFFSET; FINISH(own, i, more, sum, to): quad i of `own` channels, of a row `more`. STREAMED: no kernel
// reads the results, which are to leave the cache before all else.
#ifndef PER_PLACE
#define PER_PLACE(each)
#endif
#ifndef PER_TABLE
#define PER_TABLE(each)
#endif
constexpr unsigned RUN_QUADS = RUN / 4, RUNS = BN / (4 * RUN), OWN = RUNS * RUN_QUADS;  // of a thread, in a row
static_assert(BN % (4 * RUN) == 0, "columns");
#if RESULT_BYTES == 1
typedef unsigned Quad;
#elif RESULT_BYTES == 2
typedef uint2 Quad;
#else
typedef float4 Quad;
#endif
template <unsigned bytes> struct RunOf { typedef uint4 type; };
template <> struct RunOf<8> { typedef uint2 type; };
template <> struct RunOf<4> { typedef unsigned type; };
#if RESULT_BYTES == 4
typedef float4 Run;
#else
typedef RunOf<RUN * RESULT_BYTES>::type Run;
#endif

// What the epilogue reads and writes.
struct Places {
#define EACH(type, name) const type* name;
  PER_CHANNEL(EACH)
#undef EACH
#define EACH(name, pitch, offset) const Quad* name;
  PER_PIXEL(EACH)
#undef EACH
#define EACH(type, name, pitch, offset) const type* name;
  PER_PLACE(EACH)
#undef EACH
#define EACH(type, name) const type* name;
  PER_TABLE(EACH)
#undef EACH
  Quad* results;
};
// What it reads of so many quads of a thread's channels.
template <unsigned count> struct ChannelsOf {
  Four first[count];  // what sums begin with
#define EACH(type, name) type name[count];
  PER_CHANNEL(EACH)
#undef EACH
#define EACH(type, name) const type* name;
  PER_TABLE(EACH)
#undef EACH
};
typedef ChannelsOf<OWN> Channels;
// And of the channels of a thread's run of a row.
struct Row {
#define EACH(name, pitch, offset) Quad name[RUN_QUADS];
  PER_PIXEL(EACH)
#undef EACH
#define EACH(type, name, pitch, offset) int name;
  PER_PLACE(EACH)
#undef EACH
#ifdef TOLD
  float2 norm;  // mean and factor of a row that is normalised (told.cu)
#endif
};
// What a kernel does with a thread's rows besides (told.cu): nothing.
struct Plain {
  __device__ __forceinline__ void read(Row&, unsigned) const {}
  template <unsigned count> __device__ __forceinline__ void stored(const Quad (&)[count], unsigned) const {}
};

// The first quad of a thread's run, from those of the product's columns on.
INLINE unsigned quad_of(unsigned quad0, unsigned lane, unsigned run) { return quad0 + (run * 4 + lane % 4) * RUN_QUADS; }

// Those of its runs from `run0` on.
template <unsigned count>
INLINE void load_channels(ChannelsOf<count>& own, const Places& at, const int4* corrections, unsigned lane, unsigned quad0,
                          unsigned run0 = 0) {
#define EACH(type, name) own.name = at.name;
  PER_TABLE(EACH)
#undef EACH
#pragma unroll
  for (unsigned i = 0; i < count; i++) {
    const unsigned quad = quad_of(quad0, lane, run0 + i / RUN_QUADS) + i % RUN_QUADS;
#if BYTES == 1
    own.first[i] = quad < QUADS ? __ldg(corrections + quad) : int4{};
#else
    own.first[i] = float4{};
#endif
#define EACH(type, name) own.name[i] = quad < QUADS ? __ldg(at.name + quad) : type{};
    PER_CHANNEL(EACH)
#undef EACH
  }
}
INLINE void begin_quad(Sum (&low)[4], Sum (&high)[4], Four first) {
#pragma unroll
  for (unsigned row = 0; row < 4; row += 2) low[row] = first.x, low[row + 1] = first.y, high[row] = first.z, high[row + 1] = first.w;
}
INLINE void begin_sums(Sum (&sums)[BN / 8][4], const Channels& own) {
#pragma unroll
  for (unsigned i = 0; i < OWN; i++) begin_quad(sums[i * 2], sums[i * 2 + 1], own.first[i]);
}
// The same by those who need it once.
INLINE void begin_sums(Sum (&sums)[BN / 8][4], const int4* corrections, unsigned lane, unsigned quad0) {
#if BYTES == 1
#pragma unroll
  for (unsigned i = 0; i < OWN; i++) {
    const unsigned quad = quad_of(quad0, lane, i / RUN_QUADS) + i % RUN_QUADS;
    begin_quad(sums[i * 2], sums[i * 2 + 1], quad < QUADS ? __ldg(corrections + quad) : int4{});
  }
#endif
}
INLINE void take(unsigned (&quads)[4], uint4 run) { quads[0] = run.x, quads[1] = run.y, quads[2] = run.z, quads[3] = run.w; }
INLINE void take(unsigned (&quads)[1], unsigned run) { quads[0] = run; }
INLINE void take(unsigned (&quads)[2], uint2 run) { quads[0] = run.x, quads[1] = run.y; }
INLINE void take(uint2 (&quads)[2], uint4 run) { quads[0] = uint2{run.x, run.y}, quads[1] = uint2{run.z, run.w}; }
INLINE void take(uint2 (&quads)[1], uint2 run) { quads[0] = run; }
INLINE void take(float4 (&quads)[1], float4 run) { quads[0] = run; }
INLINE float4 joined(const float4 (&quads)[1]) { return quads[0]; }
INLINE uint4 joined(const unsigned (&quads)[4]) { return uint4{quads[0], quads[1], quads[2], quads[3]}; }
INLINE unsigned joined(const unsigned (&quads)[1]) { return quads[0]; }
INLINE uint2 joined(const unsigned (&quads)[2]) { return uint2{quads[0], quads[1]}; }
INLINE uint4 joined(const uint2 (&quads)[2]) { return uint4{quads[0].x, quads[0].y, quads[1].x, quads[1].y}; }
INLINE uint2 joined(const uint2 (&quads)[1]) { return quads[0]; }

INLINE Row load_row(const Places& at, unsigned pixel, unsigned quad) {
  const bool real = pixel < PIXELS && quad < QUADS;
  Row row;
#define EACH(name, pitch, offset) take(row.name, real ? *(const Run*)(at.name + (pixel * pitch + offset + quad)) : Run{});
  PER_PIXEL(EACH)
#undef EACH
#define EACH(type, name, pitch, offset) row.name = real ? at.name[pixel * pitch + offset] : 0;
  PER_PLACE(EACH)
#undef EACH
  return row;
}
INLINE Quad* result_at(const Places& at, unsigned pixel, unsigned quad) {
  return at.results + (pixel * RESULT_PITCH + RESULT_OFFSET + quad);
}
// Of a run, whose sums are those of the rows lane / 4 (half 0) or lane / 4 + 8 (1) of a warp's 16; channels from `first` on.
// Stored at `to`, if they are `real`. The row is number `i` of those that `rows` knows.
template <unsigned count, class Rows>
INLINE void store_run(ChannelsOf<count>& own, unsigned first, Row row, const Sum (*sums)[4], unsigned half, Quad* to,
                      bool real, Rows& rows, unsigned i) {
  Quad quads[RUN_QUADS];
#pragma unroll
  for (unsigned q = 0; q < RUN_QUADS; q++) {
    const Sum(&a)[4] = sums[q * 2], (&b)[4] = sums[q * 2 + 1];
    FINISH(own, first + q, row, q, (Four{a[half * 2], a[half * 2 + 1], b[half * 2], b[half * 2 + 1]}), quads + q);
  }
  if (!real) return;
  rows.stored(quads, i);
#if STREAMED
  __stcs((Run*)to, joined(quads));
#else
  *(Run*)to = joined(quads);
#endif
}

// Of all runs; `pixels` are those of the two rows, PIXELS and more for none.
INLINE void load_rows(Row (&rows)[2][RUNS], const Places& at, unsigned lane, unsigned quad0, const unsigned (&pixels)[2]) {
#pragma unroll
  for (unsigned half = 0; half < 2; half++)
#pragma unroll
    for (unsigned run = 0; run < RUNS; run++) rows[half][run] = load_row(at, pixels[half], quad_of(quad0, lane, run));
}
INLINE void store_runs(const Places& at, Channels& own, const Row (&rows)[2][RUNS], const Sum (&sums)[BN / 8][4],
                       unsigned lane, unsigned quad0, const unsigned (&pixels)[2]) {
  const Plain plain;
#pragma unroll
  for (unsigned half = 0; half < 2; half++)
#pragma unroll
    for (unsigned run = 0; run < RUNS; run++) {
      const unsigned pixel = pixels[half], quad = quad_of(quad0, lane, run);
      store_run(own, run * RUN_QUADS, rows[half][run], sums + run * RUN_QUADS * 2, half,
                result_at(at, pixel, quad), pixel < PIXELS && quad < QUADS, plain, 0);
    }
}
// From a thread's first row to its number `i`, of a warp's 16 of each 64.
INLINE constexpr unsigned rows_to(unsigned i) { return i / 2 * 64 + i % 2 * 8; }
#ifdef FETCHED_AT
// Where a thread has its run of its row number `i`.
INLINE unsigned fetched_at(unsigned i) { return FETCHED_AT + (i * FETCHING + threadIdx.x) * 16; }
// Begins to bring it there, or zeros where there is none; the second cache gets the whole line, the other half of which is
// that of the next run. (From memory by halves of lines, in front of which results are stored, a layer took twice as long.)
INLINE void fetch_run(const Places& at, unsigned lane, unsigned quad0, unsigned pixel0, unsigned run, unsigned i) {
  const unsigned pixel = pixel0 + lane / 4, quad = quad_of(quad0, lane, 0);
  const bool real = pixel + rows_to(i) < PIXELS && quad + run * (4 * RUN_QUADS) < QUADS;
#define EACH(name, pitch, offset) \
  copy16_of_line(fetched_at(i), at.name + ((size_t)pixel * pitch + offset + quad) + (rows_to(i) * pitch + run * (4 * RUN_QUADS)), real);
  PER_PIXEL(EACH)
#undef EACH
}
INLINE Row fetched_row(const Places& at, unsigned pixel, unsigned quad, unsigned i) {
  Row row;
#define EACH(name, pitch, offset) take(row.name, *(const Run*)(shared + fetched_at(i)));
  PER_PIXEL(EACH)
#undef EACH
#define EACH(type, name, pitch, offset) row.name = pixel < PIXELS && quad < QUADS ? at.name[pixel * pitch + offset] : 0;
  PER_PLACE(EACH)
#undef EACH
  return row;
}
#endif
// One run after the other, of `rows` times 64 rows of a warpgroup, for those who do not keep what the epilogue reads of the
// channels; `pixel0` is that of a warp's first row. What it reads of the rows is on its way for `together` runs at once: a
// load is not moved in front of a store, as results may lie where others are read, so that one by one each run
// waits as long as a load takes. With FETCHED_AT runs are fetched while others are stored, the first one by the caller.
template <unsigned together, unsigned rows, class Rows>
INLINE void store_one_by_one(const Places& at, const int4* corrections, const Sum (&sums)[rows][BN / 8][4], unsigned lane,
                             unsigned quad0, unsigned pixel0, Rows& known) {
  const unsigned pixel = pixel0 + lane / 4, quad = quad_of(quad0, lane, 0);
  Quad* const to = at.results + ((size_t)pixel * RESULT_PITCH + RESULT_OFFSET + quad);
  auto store = [&](ChannelsOf<RUN_QUADS>& own, const Row& row, unsigned run, unsigned i) {
    store_run(own, 0, row, sums[i / 2] + run * RUN_QUADS * 2, i % 2, to + (rows_to(i) * RESULT_PITCH + run * (4 * RUN_QUADS)),
              pixel + rows_to(i) < PIXELS && quad + run * (4 * RUN_QUADS) < QUADS, known, i);
  };
#ifdef FETCHED_AT
#pragma unroll
  for (unsigned run = 0; run < RUNS; run++) {
    ChannelsOf<RUN_QUADS> own;
    load_channels(own, at, corrections, lane, quad0, run);
    copies_wait<0>();
#pragma unroll
    for (unsigned i = 0; i < rows * 2; i++) {
      Row row = fetched_row(at, pixel + rows_to(i), quad_of(quad0, lane, run), i);
      if (run + 1 < RUNS) fetch_run(at, lane, quad0, pixel0, run + 1, i);
      known.read(row, i);
      store(own, row, run, i);
    }
    copies_commit();
  }
#else
#pragma unroll
  for (unsigned run0 = 0; run0 < RUNS; run0 += together) {
    Row read[together][rows * 2];
#pragma unroll
    for (unsigned run = run0; run < run0 + together && run < RUNS; run++)
#pragma unroll
      for (unsigned i = 0; i < rows * 2; i++) {
        read[run - run0][i] = load_row(at, pixel + rows_to(i), quad_of(quad0, lane, run));
        known.read(read[run - run0][i], i);
      }
#pragma unroll
    for (unsigned run = run0; run < run0 + together && run < RUNS; run++) {
      ChannelsOf<RUN_QUADS> own;
      load_channels(own, at, corrections, lane, quad0, run);
#pragma unroll
      for (unsigned i = 0; i < rows * 2; i++) store(own, read[run - run0][i], run, i);
    }
  }
#endif
}
template <unsigned together, unsigned rows>
INLINE void store_one_by_one(const Places& at, const int4* corrections, const Sum (&sums)[rows][BN / 8][4], unsigned lane,
                             unsigned quad0, unsigned pixel0) {
  const Plain plain;
  store_one_by_one<together>(at, corrections, sums, lane, quad0, pixel0, plain);
}
