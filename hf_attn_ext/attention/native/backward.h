// The gradients of one head of one sequence. Features are computed again; those of a causal sequence stay in scratch
// space between the two passes: forward in time for the queries' gradients, backward for those of keys and values.
#pragma once

#include <algorithm>

#include "head.h"

template <class T> class Gradients {
 public:
  explicit Gradients(const Call<T>& c)
      : call(c), head(c), f(head.f), fp(head.fp), d(head.d), dp(head.dp), vp(head.vp),
        chunks(c.causal ? (c.queries + TOKENS - 1) / TOKENS : 1),
        queries(chunks * fp * TOKENS), keys(chunks * fp * TOKENS), pair_gradients(chunks * TOKENS * TOKENS),
        amplitudes(chunks * TOKENS), totals(chunks * TOKENS), references(chunks),
        query_weight(f * dp), key_weight(f * dp),
        grad(TOKENS * vp), out(TOKENS * vp), grad_columns(vp * TOKENS), value_columns(vp * TOKENS), grad_ones(TOKENS),
        grad_features(fp * TOKENS), grad_columns_x(dp * TOKENS), grad_rows(TOKENS * dp), turned(TOKENS * TOKENS),
        grad_values(TOKENS * vp), grad_amplitude(TOKENS), ones(TOKENS),
        grad_sums(fp * vp), grad_feature_sums(fp), sum_query_weight(fp * dp), sum_query_bias(fp),
        sum_key_weight(fp * dp), sum_key_bias(fp), sum_norm_matrix(dp * dp), sum_shift(dp) {
    std::fill_n(static_cast<T*>(ones), TOKENS, T(1));
  }

  void open(long b, long h) {
    head.open(b, h);
    pack<T>(query_weight, call.query_weight + h * d * f, 1, f, f, d);
    pack<T>(key_weight, call.key_weight + h * d * f, 1, f, f, d);
    head.read_sums(call.grad_sums, grad_sums, grad_feature_sums);
  }

  void clear_weights() {
    for (T* x : {sum_query_weight + 0, sum_key_weight + 0}) std::fill_n(x, fp * dp, T(0));
    for (T* x : {sum_query_bias + 0, sum_key_bias + 0}) std::fill_n(x, fp, T(0));
    std::fill_n(sum_norm_matrix + 0, dp * dp, T(0));
    std::fill_n(sum_shift + 0, dp, T(0));
    norm_weight = total_weight = 0;
  }

  void close() { head.write_sums(call.grad_sums, grad_sums, grad_feature_sums); }

  // The sums since clear_weights, to row i = (slot, head).
  void write_weights(long i) {
    for (long k = 0; k < d; ++k) {
      for (long j = 0; j < f; ++j) {
        call.grad_query_weight[(i * d + k) * f + j] = sum_query_weight[j * dp + k];
        call.grad_key_weight[(i * d + k) * f + j] = sum_key_weight[j * dp + k];
      }
      std::memcpy(call.grad_norm_matrix + (i * d + k) * d, sum_norm_matrix + k * dp, d * sizeof(T));
    }
    std::memcpy(call.grad_query_bias + i * f, sum_query_bias, f * sizeof(T));
    std::memcpy(call.grad_key_bias + i * f, sum_key_bias, f * sizeof(T));
    std::memcpy(call.grad_shift + i * d, sum_shift, d * sizeof(T));
    call.grad_norm_weight[i] = norm_weight;
    call.grad_total_weight[i] = total_weight;
  }

  void causal() {
    for (long c = 0; c < chunks; ++c) query_chunk(c);
    for (long c = chunks; c-- > 0;) key_chunk(c);
  }

  // The sums that arrive are those over all keys.
  void bidirectional() {
    for (long first = 0; first < call.queries; first += TOKENS) {
      const long n = std::min(TOKENS, call.queries - first);
      head.map_queries(first, n, queries);
      load_gradient(first, n);
      from_sums(head.sums, grad_columns, head.feature_sums, grad_ones, ones);
      finish_queries(first, n, queries);
      head.add_to_sums(queries, grad, vp, grad_ones, grad_sums, grad_feature_sums);
    }
    for (long first = 0; first < call.keys; first += TOKENS) {
      const long n = std::min(TOKENS, call.keys - first);
      head.map_keys(first, n, keys, known_norms(first));
      head.move_reference();
      load_values(first, n);
      read_grad_sums(keys);
      write_rows(call.grad_v, call.keys, first, n, grad_values, vp, head.v, T(1));
      from_sums(grad_sums, value_columns, grad_feature_sums, ones, head.weight);
      load_keys(first, n);
      finish_keys(first, n, keys);
    }
  }

 private:
  static constexpr long L = LANES<T>, STEP = L > ROWS ? L : ROWS;
  const Call<T>& call;
  Head<T> head;
  const long f, fp, d, dp, vp, chunks;
  Space<T> queries, keys, pair_gradients, amplitudes, totals, references;
  Space<T> query_weight, key_weight;  // transposed
  Space<T> grad, out, grad_columns, value_columns, grad_ones, grad_features, grad_columns_x, grad_rows, turned;
  Space<T> grad_values, grad_amplitude, ones;
  Space<T> grad_sums, grad_feature_sums;
  Space<T> sum_query_weight, sum_query_bias, sum_key_weight, sum_key_bias, sum_norm_matrix, sum_shift;
  T norm_weight = 0, total_weight = 0;

  const T* known_norms(long first) const { return call.norm + (head.b * call.heads + head.h) * call.keys + first; }

  // Forward in time: the gradients of a chunk's queries, from the keys before and in the chunk.
  void query_chunk(long c) {
    const long first = c * TOKENS, n = std::min(TOKENS, call.queries - first);
    T *q = queries + c * fp * TOKENS, *k = keys + c * fp * TOKENS, *pairs = pair_gradients + c * TOKENS * TOKENS;
    head.map_keys(first, n, k, known_norms(first));
    std::memcpy(amplitudes + first, head.amplitude, TOKENS * sizeof(T));
    std::memcpy(totals + first, head.total, TOKENS * sizeof(T));
    references[c] = head.reference;
    const T decay = head.move_reference();
    load_values(first, n);
    head.map_queries(first, n, q);
    load_gradient(first, n);
    head.make_pairs(value_columns, grad_columns, head.v, grad_ones, pairs);
    from_sums(head.sums, grad_columns, head.feature_sums, grad_ones, head.before);
    for (long j = 0; j < TOKENS; j += STEP)  // queries j to j + STEP see keys before j + STEP
      product<T, false, ADD>(fp, STEP / L, j + STEP, tall<T>(k, TOKENS), pairs + j, TOKENS, grad_features + j, TOKENS);
    finish_queries(first, n, q);
    head.add_keys_to_sums(k, decay);
  }

  // Backward in time: the gradients of a chunk's keys and values, from the queries after and in the chunk.
  void key_chunk(long c) {
    const long first = c * TOKENS, n = std::min(TOKENS, call.keys - first);
    T *q = queries + c * fp * TOKENS, *k = keys + c * fp * TOKENS, *pairs = pair_gradients + c * TOKENS * TOKENS;
    std::memcpy(head.amplitude, amplitudes + first, TOKENS * sizeof(T));
    std::memcpy(head.total, totals + first, TOKENS * sizeof(T));
    std::memcpy(head.norm, known_norms(first), n * sizeof(T));
    head.reference = references[c];
    const T decay = head.move_reference();
    load_values(first, n);
    load_gradient(first, n);
    head.make_pairs(k, q, f, nullptr, head.pairs);
    read_grad_sums(k);
    for (long t = 0; t < TOKENS; t += STEP)  // keys t to t + STEP are seen from query t on
      product<T, false, ADD>(STEP, vp / L, TOKENS - t, tall<T>(head.pairs + t * TOKENS + t, TOKENS), grad + t * vp, vp,
                             grad_values + t * vp, vp);
    write_rows(call.grad_v, call.keys, first, n, grad_values, vp, head.v, T(1));
    from_sums(grad_sums, value_columns, grad_feature_sums, ones, head.weight);
    transpose<T>(turned, TOKENS, pairs, TOKENS, TOKENS, TOKENS);
    for (long j = 0; j < TOKENS; j += STEP)
      product<T, false, ADD>(fp, STEP / L, TOKENS - j, tall<T>(q + j, TOKENS), turned + j * TOKENS + j, TOKENS,
                             grad_features + j, TOKENS);
    load_keys(first, n);
    finish_keys(first, n, k);
    head.scale_sums(decay, grad_sums, grad_feature_sums);
    head.scale_rows(grad, vp, head.before);
    for (long j = 0; j < TOKENS; j += L) at(grad_ones + j) *= at(head.before + j);
    head.add_to_sums(q, grad, vp, grad_ones, grad_sums, grad_feature_sums);
  }

  // The gradients of numerators (`grad`) and denominators (`grad_ones`).
  void load_gradient(long first, long n) {
    const int64_t strides[] = {call.heads * call.queries * head.v, call.queries * head.v, head.v};
    head.load(call.grad_out, call.grad_strides, first, n, head.v, vp, T(1), nullptr, grad);
    head.load(call.out, strides, first, n, head.v, vp, T(1), nullptr, out);
    const T* denominators = call.denominator + (head.b * call.heads + head.h) * call.queries + first;
    for (long t = 0; t < TOKENS; ++t) {
      const T denominator = t < n ? denominators[t] : T(1);
      const T factor = T(1) / head.floored(denominator);
      Vec<T> inner{};
      for (long i = 0; i < vp; i += L) {
        inner += at(grad + t * vp + i) * at(out + t * vp + i);
        at(grad + t * vp + i) *= factor;
      }
      grad_ones[t] = head.is_empty(denominator) ? T(0) : -sum<T>(inner) * factor;
    }
    transpose<T>(grad_columns, TOKENS, grad, vp, TOKENS, vp);
  }

  void load_values(long first, long n) {
    head.load_values(first, n);
    transpose<T>(value_columns, TOKENS, head.values, vp, TOKENS, vp);
  }

  void load_keys(long first, long n) {
    head.load(call.k, call.k_strides, first, n, d, dp, T(call.factor), head.real(first), head.rows);
    transpose<T>(head.columns, TOKENS, head.rows, dp, TOKENS, dp);
  }

  // grad_features = (all x + features' own sums times `own`) times `factor`; x (vp, TOKENS), own and factor (TOKENS).
  void from_sums(const T* all, const T* x, const T* sums_of_ones, const T* own, const T* factor) {
    product<T, false, ZERO>(fp, TOKENS / L, head.v, tall<T>(all, vp), x, TOKENS, grad_features, TOKENS);
    for (long i = 0; i < f; ++i)
      for (long j = 0; j < TOKENS; j += L) {
        Vec<T>& g = at(grad_features + i * TOKENS + j);
        g = (g + sums_of_ones[i] * at(own + j)) * at(factor + j);
      }
  }

  // The values' gradients from later chunks.
  void read_grad_sums(const T* features) {
    product<T, true, ZERO>(TOKENS, vp / L, f, wide<T>(features, TOKENS), grad_sums, vp, grad_values, vp);
    head.scale_rows(grad_values, vp, head.weight);
  }

  // grad_features of a softmax to those of its exponents; `inner`: features . gradients. `kept`: see finish_keys.
  void softmax_backward(const T* features, T kept, T* inner) {
    head.inner_products(features, grad_features, f, inner);
    for (long i = 0; i < f; ++i)
      for (long j = 0; j < TOKENS; j += L) {
        Vec<T>& g = at(grad_features + i * TOKENS + j);
        g = at(features + i * TOKENS + j) * (g - at(inner + j) * kept);
      }
  }

  void project_backward(const T* weight, T* sum_weight, T* sum_bias) {
    product<T, true, ZERO>(dp, TOKENS / L, f, packed<T>(weight, f), grad_features, TOKENS, grad_columns_x, TOKENS);
    head.add_to_sums(grad_features, head.rows, dp, ones, sum_weight, sum_bias);
  }

  void finish_queries(long first, long n, const T* features) {
    softmax_backward(features, T(1), grad_amplitude);
    project_backward(query_weight, sum_query_weight, sum_query_bias);
    write_tokens(call.grad_q, call.queries, first, n);
  }

  // A key's amplitude multiplies its features, so its gradient is `inner`; a part of it goes to the log-sum, whose
  // gradient is the features, and the rest to the norm.
  void finish_keys(long first, long n, const T* features) {
    softmax_backward(features, T(1) - head.total_weight, grad_amplitude);
    project_backward(key_weight, sum_key_weight, sum_key_bias);
    for (long t = 0; t < n; ++t)
      if (grad_amplitude[t] != T(0)) {
        total_weight += grad_amplitude[t] * head.total[t];
        norm_weight += grad_amplitude[t] * head.norm[t];
      }
    head.shift_columns();
    product<T, true, ZERO>(dp, TOKENS / L, d, packed<T>(head.norm_matrix, d), head.columns, TOKENS, head.mapped, TOKENS);
    for (long i = 0; i < d; ++i) {
      Vec<T> s{};
      for (long j = 0; j < TOKENS; j += L) {
        const Vec<T> a = at(grad_amplitude + j) * head.norm_weight;
        const Vec<T> step = at(head.mapped + i * TOKENS + j) * a * T(2);
        at(grad_columns_x + i * TOKENS + j) += step;
        s += step;
        at(head.columns + i * TOKENS + j) *= a;
      }
      sum_shift[i] -= sum<T>(s);
    }
    for (long t = 0; t < TOKENS; ++t)
      for (long i = 0; i < dp; i += L) at(head.rows + t * dp + i) -= at(head.shift + i);
    product<T, false, ADD>(dp, dp / L, TOKENS, tall<T>(head.columns, TOKENS), head.rows, dp, sum_norm_matrix, dp);
    write_tokens(call.grad_k, call.keys, first, n);
  }

  void write_tokens(T* to, long length, long first, long n) {
    transpose<T>(grad_rows, dp, grad_columns_x, TOKENS, dp, TOKENS);
    write_rows(to, length, first, n, grad_rows, dp, d, T(call.factor));
  }

  void write_rows(T* to, long length, long first, long n, const T* from, long wide_from, long w, T factor) const {
    to += ((head.b * call.heads + head.h) * length + first) * w;
    for (long t = 0; t < n; ++t)
      for (long i = 0; i < w; ++i) to[t * w + i] = from[t * wide_from + i] * factor;
  }
};
