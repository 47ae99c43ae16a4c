// Vectors, small matrix products in registers, exponentials and transposes. GCC's and clang's vector extensions only:
// the compiler's -march decides about the instructions.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 8;  // of a vector; rows of a product kept in registers: 32 registers hold 8 x 2 sums
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 4;
#else
constexpr int BYTES = 16, ROWS = 4;
#endif
constexpr int COLUMNS = 2;  // vectors of a product kept in registers
constexpr int ALIGNMENT = 64;

template <class T>
struct Simd {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef T Vec __attribute__((vector_size(BYTES)));
  typedef Bits Mask __attribute__((vector_size(BYTES)));
  static constexpr int LANES = BYTES / sizeof(T);
};
template <class T> using Vec = typename Simd<T>::Vec;
template <class T> using Mask = typename Simd<T>::Mask;
template <class T> constexpr int LANES = Simd<T>::LANES;

INLINE long round_up(long n, long to) { return (n + to - 1) / to * to; }

template <class T> INLINE Vec<T>& at(T* p) { return *reinterpret_cast<Vec<T>*>(p); }
template <class T> INLINE const Vec<T>& at(const T* p) { return *reinterpret_cast<const Vec<T>*>(p); }
template <class T> INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }
template <class T> INLINE Vec<T> select(Mask<T> m, Vec<T> a, Vec<T> b) {
  return (Vec<T>)((m & (Mask<T>)a) | (~m & (Mask<T>)b));
}
template <class T> INLINE Vec<T> larger(Vec<T> a, Vec<T> b) { return a > b ? a : b; }

// The elements I of two vectors in a row.
template <class T, size_t... I> INLINE Vec<T> pick(Vec<T> a, Vec<T> b, std::index_sequence<I...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, Mask<T>{I...});
#endif
}
template <class T, int HALF, size_t... I> INLINE Vec<T> zip(Vec<T> a, Vec<T> b, std::index_sequence<I...>) {
  constexpr size_t L = LANES<T>;
  return pick<T>(a, b, std::index_sequence<(I % 2 * L + I / 2 + HALF * L / 2)...>{});
}
template <class T, size_t STEP, size_t... I> INLINE Vec<T> turn(Vec<T> x, std::index_sequence<I...>) {
  return pick<T>(x, x, std::index_sequence<(I + STEP) % LANES<T>...>{});
}

template <class T, size_t STEP = LANES<T> / 2> INLINE T sum(Vec<T> x) {
  x += turn<T, STEP>(x, std::make_index_sequence<LANES<T>>{});
  if constexpr (STEP == 1)
    return x[0];
  else
    return sum<T, STEP / 2>(x);
}

// e^x for x <= 0, to about 1 unit in the last place; exactly 0 where e^x is no normal number, and for -inf. NaN stays.
template <class T> INLINE Vec<T> exp_negative(Vec<T> x) {
  using B = typename Simd<T>::Bits;
  constexpr bool single = sizeof(T) == 4;
  constexpr int mantissa = single ? 23 : 52;
  constexpr B bias = single ? 127 : 1023;
  const T magic = single ? T(12582912.0) : T(6755399441055744.0);  // 1.5 * 2^mantissa: adding it rounds to integers
  const T lowest = single ? T(-87.3) : T(-708.3);
  const Vec<T> shifted = x * T(1.4426950408889634074) + magic;
  const Vec<T> n = shifted - magic;
  Vec<T> r = x - n * (single ? T(0.693145751953125) : T(0.69314718036912381649));
  r = r - n * (single ? T(1.42860682030941723212e-6) : T(1.9082149292705877e-10));
  Vec<T> p;
  if constexpr (single) {
    p = r * T(1.0 / 5040) + T(1.0 / 720);
  } else {
    p = r * T(1.0 / 6227020800.0) + T(1.0 / 479001600.0);
    p = p * r + T(1.0 / 39916800.0);
    p = p * r + T(1.0 / 3628800.0);
    p = p * r + T(1.0 / 362880.0);
    p = p * r + T(1.0 / 40320.0);
    p = p * r + T(1.0 / 5040.0);
    p = p * r + T(1.0 / 720.0);
  }
  p = p * r + T(1.0 / 120);
  p = p * r + T(1.0 / 24);
  p = p * r + T(1.0 / 6);
  p = p * r + T(0.5);
  p = p * r + T(1);
  p = p * r + T(1);
  const Vec<T> power = (Vec<T>)(((Mask<T>)shifted << mantissa) + (bias << mantissa));
  return select<T>(x < lowest, Vec<T>{}, p * power);
}

enum Start { ZERO, ADD, BIAS };  // what a product is added to: nothing, the target, a number a row

// ROWS x NR vectors of c (+)= a b. a(m, k) is a[k * lda + m] if WIDE, else a[m * lda + k].
template <class T, int NR, bool WIDE, Start START>
INLINE void tile(long depth, const T* a, long lda, const T* b, long ldb, T* c, long ldc, const T* bias) {
  constexpr int L = LANES<T>;
  Vec<T> sums[ROWS][NR];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j)
      sums[i][j] = START == ADD ? at(c + i * ldc + j * L) : START == BIAS ? splat(bias[i]) : Vec<T>{};
  for (long k = 0; k < depth; ++k) {
    Vec<T> right[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) right[j] = at(b + k * ldb + j * L);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const T left = WIDE ? a[k * lda + i] : a[i * lda + k];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) sums[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) at(c + i * ldc + j * L) = sums[i][j];
}

// The left factor of a product: rows in groups of ROWS, `group` elements apart.
template <class T> struct Left {
  const T* data;
  long ld, group;
};
template <class T> INLINE Left<T> wide(const T* a, long ld) { return {a, ld, ROWS}; }         // a(m, k) = a[k * ld + m]
template <class T> INLINE Left<T> tall(const T* a, long ld) { return {a, ld, ROWS * ld}; }    // a(m, k) = a[m * ld + k]
template <class T> INLINE Left<T> packed(const T* a, long k) { return {a, ROWS, ROWS * k}; }  // wide, see pack()

// c (rows x vectors) (+)= a b, where b and c have rows of vectors. rows: a multiple of ROWS.
template <class T, bool WIDE, Start START>
__attribute__((noinline)) void product(
    long rows, long vectors, long depth, Left<T> a, const T* b, long ldb, T* c, long ldc, const T* bias = nullptr) {
  constexpr int L = LANES<T>;
  long j = 0;
  for (; j + COLUMNS <= vectors; j += COLUMNS)
    for (long i = 0; i < rows / ROWS; ++i)
      tile<T, COLUMNS, WIDE, START>(
          depth, a.data + i * a.group, a.ld, b + j * L, ldb, c + i * ROWS * ldc + j * L, ldc, START == BIAS ? bias + i * ROWS : nullptr);
  for (; j < vectors; ++j)
    for (long i = 0; i < rows / ROWS; ++i)
      tile<T, 1, WIDE, START>(
          depth, a.data + i * a.group, a.ld, b + j * L, ldb, c + i * ROWS * ldc + j * L, ldc, START == BIAS ? bias + i * ROWS : nullptr);
}

// Copy a matrix given by strides, (k, m) -> x[k * sk + m * sm], into groups of ROWS consecutive m; zeros to fill.
template <class T> void pack(T* to, const T* x, long sk, long sm, long depth, long rows) {
  for (long i = 0; i < rows; i += ROWS)
    for (long k = 0; k < depth; ++k)
      for (long m = i; m < i + ROWS; ++m) *to++ = m < rows ? x[k * sk + m * sm] : T(0);
}

// to[c * ld_to + r] = from[r * ld + c]; rows and columns are whole vectors.
template <class T>
__attribute__((noinline)) void transpose(T* to, long ld_to, const T* from, long ld, long rows, long columns) {
  constexpr int L = LANES<T>;
  constexpr auto lanes = std::make_index_sequence<L>{};
  for (long r = 0; r < rows; r += L)
    for (long c = 0; c < columns; c += L) {
      Vec<T> x[L], y[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) x[i] = at(from + (r + i) * ld + c);
#pragma GCC unroll 4
      for (int round = 1; round < L; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < L / 2; ++i) {
          y[2 * i] = zip<T, 0>(x[i], x[i + L / 2], lanes);
          y[2 * i + 1] = zip<T, 1>(x[i], x[i + L / 2], lanes);
        }
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) x[i] = y[i];
      }
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) at(to + (c + i) * ld_to + r) = x[i];
    }
}
