// The number of what comes `turn`th of all that workgroups walk over: from the last one on where they are turned.
INLINE unsigned in_turn(unsigned turn, unsigned all) {
#ifdef TURNED
  return all - 1 - turn;
#else
  return turn;
#endif
}
