// A factor of warpgroup.cu's products, of which each row has its 16 bytes behind those of the row before: these are a panel,
// and the next 16 bytes of all rows lie `panel` bytes behind them. It may begin with any row, `at` plus 16 times that, which
// is one more in the value.
template <unsigned panel> INLINE unsigned long long panels(unsigned at) {
  return (shared_address(at) >> 4 & 0x3fff) | (unsigned long long)(panel / 16) << 16 | 8ull << 32;
}
