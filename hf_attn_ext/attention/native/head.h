// What one head of one sequence computes chunk by chunk, in a scratch space that fits a core's caches.
// Chunks of features are transposed, (features, tokens): a vector holds one feature of several tokens.
#pragma once

#include <cmath>
#include <cstdlib>
#include <new>

#include "simd.h"

constexpr long TOKENS = 32;  // in a chunk
static_assert(TOKENS % (BYTES / sizeof(float)) == 0 && TOKENS % 8 == 0, "chunks are whole vectors");

template <class T> constexpr T NO_KEY = -std::numeric_limits<T>::infinity();

// See operators.py, which fills it, for the shapes. Strides are in elements.
template <class T> struct Call {
  int64_t batch, heads, queries, keys, head_dim, features, value_dim, causal, threads, slots;
  double factor;
  const T *q, *k, *v;
  int64_t q_strides[3], k_strides[3], v_strides[3];
  const uint8_t* real;
  const T *query_weight, *query_bias, *key_weight, *key_bias, *norm_matrix, *shift, *norm_weight, *total_weight;
  T *sums, *reference;  // of the state: before on entry, after on return
  T *out, *denominator, *norm;
  // backward only; grad_sums: of the state after on entry, before on return
  const T* grad_out;
  int64_t grad_strides[3];
  T *grad_sums, *grad_q, *grad_k, *grad_v;
  // (slots, ...) each: of every `slots`-th sequence
  T *grad_query_weight, *grad_query_bias, *grad_key_weight, *grad_key_bias, *grad_norm_matrix, *grad_shift;
  T *grad_norm_weight, *grad_total_weight;
};

template <class T> class Space {  // zeroed and aligned memory
 public:
  explicit Space(long count) {
    data_ = static_cast<T*>(std::aligned_alloc(ALIGNMENT, round_up(count * sizeof(T) + ALIGNMENT, ALIGNMENT)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0, count * sizeof(T));
  }
  ~Space() { std::free(data_); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;
  operator T*() const { return data_; }

 private:
  T* data_;
};

template <class T> class Head {
 public:
  static constexpr long L = LANES<T>;
  static constexpr long WHOLE = L > 8 ? L : 8;

  const Call<T>& call;
  const long d, f, v, dp, fp, vp;  // widths of heads, features and values, and the same rounded up
  Space<T> query_weight, key_weight, query_bias, key_bias, norm_matrix, shift;
  Space<T> rows, columns, values, mapped, pairs, weighted;
  Space<T> amplitude, seen, before, weight, total, norm, denominator;
  Space<T> sums, feature_sums;
  long b = 0, h = 0;
  T reference = NO_KEY<T>, norm_weight = 0, total_weight = 0;

  explicit Head(const Call<T>& c)
      : call(c), d(c.head_dim), f(c.features), v(c.value_dim),
        dp(round_up(d, WHOLE)), fp(round_up(f, WHOLE)), vp(round_up(v, WHOLE)),
        query_weight(d * fp), key_weight(d * fp), query_bias(fp), key_bias(fp), norm_matrix(d * dp), shift(dp),
        rows(TOKENS * dp), columns(TOKENS * dp), values(TOKENS * vp), mapped(TOKENS * dp),
        pairs(TOKENS * TOKENS), weighted(TOKENS * vp),
        amplitude(TOKENS), seen(TOKENS), before(TOKENS), weight(TOKENS), total(TOKENS), norm(TOKENS),
        denominator(TOKENS), sums(fp * vp), feature_sums(fp) {}

  // Turn to a head: pack its weights, read its state.
  void open(long batch, long head) {
    b = batch, h = head;
    pack<T>(query_weight, call.query_weight + h * d * f, f, 1, d, f);
    pack<T>(key_weight, call.key_weight + h * d * f, f, 1, d, f);
    pack<T>(norm_matrix, call.norm_matrix + h * d * d, d, 1, d, d);
    std::memcpy(query_bias, call.query_bias + h * f, f * sizeof(T));
    std::memcpy(key_bias, call.key_bias + h * f, f * sizeof(T));
    std::memcpy(shift, call.shift + h * d, d * sizeof(T));
    norm_weight = call.norm_weight[h], total_weight = call.total_weight[h];
    reference = call.reference[b * call.heads + h];
    read_sums(call.sums, sums, feature_sums);
  }

  void close() {
    call.reference[b * call.heads + h] = reference;
    write_sums(call.sums, sums, feature_sums);
  }

  void read_sums(const T* from, T* to, T* ones) const {
    from += (b * call.heads + h) * f * (v + 1);
    for (long i = 0; i < f; ++i, from += v + 1) {
      std::memcpy(to + i * vp, from, v * sizeof(T));
      ones[i] = from[v];
    }
  }

  void write_sums(T* to, const T* from, const T* ones) const {
    to += (b * call.heads + h) * f * (v + 1);
    for (long i = 0; i < f; ++i, to += v + 1) {
      std::memcpy(to, from + i * vp, v * sizeof(T));
      to[v] = ones[i];
    }
  }

  const uint8_t* real(long first) const { return call.real ? call.real + b * call.keys + first : nullptr; }

  // n tokens of width w, times factor, into rows of `wide`; zeros where a token is missing or padded.
  void load(const T* x, const int64_t* strides, long first, long n, long w, long wide_to, T factor,
            const uint8_t* real_ones, T* to) const {
    x += b * strides[0] + h * strides[1] + first * strides[2];
    for (long t = 0; t < TOKENS; ++t, to += wide_to) {
      if (t >= n || (real_ones && !real_ones[t])) {
        std::memset(to, 0, wide_to * sizeof(T));
        continue;
      }
      const T* row = x + t * strides[2];
      for (long i = 0; i < w; ++i) to[i] = row[i] * factor;
    }
  }

  void load_values(long first, long n) {
    load(call.v, call.v_strides, first, n, v, vp, T(1), real(first), values);
  }

  // Queries' features (fp, TOKENS).
  void map_queries(long first, long n, T* features) {
    load(call.q, call.q_strides, first, n, d, dp, T(call.factor), nullptr, rows);
    transpose<T>(columns, TOKENS, rows, dp, TOKENS, dp);
    product<T, true, BIAS>(fp, TOKENS / L, d, packed<T>(query_weight, d), columns, TOKENS, features, TOKENS, query_bias);
    softmax(features, nullptr);
  }

  // Keys' features (fp, TOKENS), exactly 0 where there is no key; their amplitudes, norms and log-sums.
  // `known`: norms from the forward pass, or null.
  void map_keys(long first, long n, T* features, const T* known) {
    const uint8_t* real_ones = real(first);
    load(call.k, call.k_strides, first, n, d, dp, T(call.factor), real_ones, rows);
    transpose<T>(columns, TOKENS, rows, dp, TOKENS, dp);
    product<T, true, BIAS>(fp, TOKENS / L, d, packed<T>(key_weight, d), columns, TOKENS, features, TOKENS, key_bias);
    softmax(features, total);
    if (known) {
      for (long t = 0; t < n; ++t) norm[t] = known[t];
    } else {
      shift_columns();
      product<T, true, ZERO>(dp, TOKENS / L, d, packed<T>(norm_matrix, d), columns, TOKENS, mapped, TOKENS);
      inner_products(mapped, columns, d, norm);
    }
    bool whole = true;
    for (long t = 0; t < TOKENS; ++t) {
      const bool there = t < n && (!real_ones || real_ones[t]);
      amplitude[t] = there ? norm[t] * norm_weight + total[t] * total_weight : NO_KEY<T>;
      whole &= there;
    }
    if (!whole)
      for (long t = 0; t < TOKENS; ++t)
        if (amplitude[t] == NO_KEY<T>)
          for (long i = 0; i < f; ++i) features[i * TOKENS + t] = 0;
  }

  void shift_columns() {
    for (long i = 0; i < d; ++i)
      for (long j = 0; j < TOKENS; j += L) at(columns + i * TOKENS + j) -= splat(shift[i]);
  }

  // The largest amplitude that each query sees (`seen`), what factor turns sums into its reference (`before`), what
  // factor keys enter the sums with (`weight`). Returns the factor of the sums so far, and moves the reference.
  T move_reference() {
    const T old = reference;
    for (long t = 0; t < TOKENS; ++t) {
      if (amplitude[t] > reference || amplitude[t] != amplitude[t]) reference = amplitude[t];
      seen[t] = reference == NO_KEY<T> ? T(0) : reference;
    }
    const T now = seen[TOKENS - 1];
    for (long j = 0; j < TOKENS; j += L) {
      at(before + j) = exp_negative<T>(splat(old) - at(seen + j));
      at(weight + j) = exp_negative<T>(at(amplitude + j) - now);
    }
    return exp_negative<T>(splat(old - now))[0];
  }

  // exp(amplitude of a key - the largest that a query sees), 0 for later keys: a row of pairs (key, queries).
  INLINE Vec<T> pair_factor(T key_amplitude, long key, Vec<T> queries_seen, long query) {
    Mask<T> positions;
    for (int i = 0; i < L; ++i) positions[i] = query + i;
    const Vec<T> e = exp_negative<T>(key_amplitude - queries_seen);
    return select<T>(positions >= (typename Simd<T>::Bits)key, e, Vec<T>{});
  }

  // pairs(key, query) = a feature product times pair_factor, lower triangular; left and right are (depth, TOKENS).
  // Adds `row` (queries) before the factor, if given.
  void make_pairs(const T* left, const T* right, long depth, const T* row, T* to) {
    for (long key = 0; key < TOKENS; key += ROWS) {
      const long from = key / L * L;
      product<T, true, ZERO>(ROWS, (TOKENS - from) / L, depth, wide<T>(left + key, TOKENS), right + from, TOKENS,
                             to + key * TOKENS + from, TOKENS);
      for (long t = key; t < key + ROWS; ++t)
        for (long j = from; j < TOKENS; j += L) {
          Vec<T>& x = at(to + t * TOKENS + j);
          if (row) x += at(row + j);
          x *= pair_factor(amplitude[t], t, at(seen + j), j);
        }
    }
  }

  void scale_sums(T factor, T* all, T* ones) const {
    if (factor == T(1)) return;
    for (long i = 0; i < fp * vp; i += L) at(all + i) *= factor;
    for (long i = 0; i < fp; i += L) at(ones + i) *= factor;
  }

  // all += features (fp, TOKENS) times x (TOKENS, width); ones += features times `of_ones`.
  void add_to_sums(const T* features, const T* x, long width, const T* of_ones, T* all, T* ones) const {
    product<T, false, ADD>(fp, width / L, TOKENS, tall<T>(features, TOKENS), x, width, all, width);
    for (long i = 0; i < f; ++i) {
      Vec<T> s{};
      for (long j = 0; j < TOKENS; j += L) s += at(features + i * TOKENS + j) * at(of_ones + j);
      ones[i] += sum<T>(s);
    }
  }

  void scale_rows(T* x, long width, const T* factors) const {
    for (long t = 0; t < TOKENS; ++t)
      if (factors[t] != T(1))
        for (long i = 0; i < width; i += L) at(x + t * width + i) *= factors[t];
  }

  void add_keys_to_sums(const T* features, T decay) {
    scale_sums(decay, sums, feature_sums);
    scale_rows(values, vp, weight);
    add_to_sums(features, values, vp, weight, sums, feature_sums);
  }

  // features (fp, TOKENS) of queries . sums into `weighted` and `denominator`
  void read_state(const T* features) {
    product<T, true, ZERO>(TOKENS, vp / L, f, wide<T>(features, TOKENS), sums, vp, weighted, vp);
    Vec<T> s[TOKENS / L] = {};
    for (long i = 0; i < f; ++i)
      for (long j = 0; j < TOKENS / L; ++j) s[j] += at(features + i * TOKENS + j * L) * feature_sums[i];
    for (long j = 0; j < TOKENS / L; ++j) at(denominator + j * L) = s[j];
  }

  // Of each token's columns of a and b (depth, TOKENS).
  static void inner_products(const T* a, const T* b, long depth, T* to) {
    Vec<T> s[TOKENS / L] = {};
    for (long i = 0; i < depth; ++i)
      for (long j = 0; j < TOKENS / L; ++j) s[j] += at(a + i * TOKENS + j * L) * at(b + i * TOKENS + j * L);
    for (long j = 0; j < TOKENS / L; ++j) at(to + j * L) = s[j];
  }

  // `weighted` over `denominator` to the output
  void write_out(long first, long n) {
    const long row = (b * call.heads + h) * call.queries + first;
    for (long t = 0; t < n; ++t) {
      const T factor = T(1) / floored(denominator[t]);
      T* to = call.out + (row + t) * v;
      for (long i = 0; i < v; ++i) to[i] = weighted[t * vp + i] * factor;
      call.denominator[row + t] = denominator[t];
    }
  }

  static bool is_empty(T denominator) { return denominator < std::numeric_limits<T>::min() * T(1e8); }
  static T floored(T denominator) { return is_empty(denominator) ? T(1) : denominator; }  // as normaliser.floored

 private:
  void softmax(T* x, T* log_sum) const {
    constexpr long V = TOKENS / L;
    Vec<T> top[V], s[V] = {};
    for (long j = 0; j < V; ++j) top[j] = at(x + j * L);
    for (long i = 1; i < f; ++i)
      for (long j = 0; j < V; ++j) top[j] = larger<T>(at(x + i * TOKENS + j * L), top[j]);
    for (long i = 0; i < f; ++i)
      for (long j = 0; j < V; ++j) {
        Vec<T>& e = at(x + i * TOKENS + j * L);
        e = exp_negative<T>(e - top[j]);
        s[j] += e;
      }
    if (log_sum)
      for (long t = 0; t < TOKENS; ++t) log_sum[t] = top[t / L][t % L] + std::log(s[t / L][t % L]);
    for (long j = 0; j < V; ++j) s[j] = T(1) / s[j];
    for (long i = 0; i < f; ++i)
      for (long j = 0; j < V; ++j) at(x + i * TOKENS + j * L) *= s[j];
    std::memset(x + f * TOKENS, 0, (fp - f) * TOKENS * sizeof(T));
  }
};
