// Some neighbouring channels of a pixel, as they lie in memory, to floats.
INLINE void unpack(uint2 a, float (&v)[4]) {
  v[0] = half_to_float((unsigned short)a.x);
  v[1] = half_to_float((unsigned short)(a.x >> 16));
  v[2] = half_to_float((unsigned short)a.y);
  v[3] = half_to_float((unsigned short)(a.y >> 16));
}
INLINE void unpack(uint4 a, float (&v)[8]) {
  const unsigned words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (unsigned i = 0; i < 4; i++) {
    v[2 * i] = half_to_float((unsigned short)words[i]);
    v[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
  }
}
INLINE void unpack(uint4 a, float (&v)[16]) {  // bytes
  const unsigned words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (unsigned i = 0; i < 16; i++) v[i] = (float)(signed char)(words[i / 4] >> i % 4 * 8);
}
INLINE void unpack(float4 a, float (&v)[4]) { v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w; }
