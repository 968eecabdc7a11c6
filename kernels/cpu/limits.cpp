// What the machine can do at best: bytes read from memory and 8-bit products, per second, with N threads.
//     limits N  ->  {"read_gb_s": ..., "int8_gop_s": ... or null}

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__AVX512VNNI__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

// Far beyond any cache that this machine could have.
constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr int kPasses = 6;
constexpr int64_t kProductSteps = 5'000'000;

typedef uint64_t Lanes __attribute__((vector_size(64)));

double seconds_of(int num_threads, const std::function<void(int)>& work) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::atomic<bool> go{false};
    for (int i = 0; i < num_threads; ++i) {
        threads.emplace_back([&, i] {
            ++ready;
            while (!go) {
            }
            work(i);
        });
    }
    while (ready < num_threads) {
    }
    const auto start = std::chrono::steady_clock::now();
    go = true;
    for (auto& thread : threads) thread.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Lanes sum_of(const Lanes* data, size_t count) {
    Lanes sums[8] = {};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) sums[lane] ^= data[i + lane];
    }
    for (int lane = 1; lane < 8; ++lane) sums[0] ^= sums[lane];
    return sums[0];
}

double read_gb_s(int num_threads) {
    const size_t each = kBufferBytes / num_threads / 4096 * 4096;
    auto* data = static_cast<char*>(std::aligned_alloc(size_t{2} << 20, kBufferBytes));
#if defined(__linux__)
    madvise(data, kBufferBytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < kBufferBytes; i += 64) data[i] = static_cast<char>(i >> 6);
    std::vector<Lanes> sinks(num_threads);
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        const double seconds = seconds_of(num_threads, [&](int i) {
            sinks[i] ^= sum_of(reinterpret_cast<const Lanes*>(data + i * each), each / sizeof(Lanes));
        });
        const double rate = static_cast<double>(each) * num_threads / seconds / 1e9;
        if (rate > best) best = rate;
    }
    volatile uint64_t sink = sinks[0][0];
    (void)sink;
    std::free(data);
    return best;
}

#if defined(__AVX512VNNI__)
double int8_pass_gop_s(int num_threads) {
    std::vector<int> sinks(num_threads);
    const double seconds = seconds_of(num_threads, [&](int i) {
        // Enough chains to hide the latency; the empty asm keeps the compiler from folding them.
        __m512i sums[16];
        for (auto& sum : sums) sum = _mm512_set1_epi32(i);
        __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
        for (int64_t step = 0; step < kProductSteps; ++step) {
            asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
            for (int k = 0; k < 16; ++k) sums[k] = _mm512_dpbusd_epi32(sums[k], a, b);
        }
        __m512i all = sums[0];
        for (int k = 1; k < 16; ++k) all = _mm512_add_epi32(all, sums[k]);
        sinks[i] = _mm512_reduce_add_epi32(all);
    });
    volatile int sink = sinks[0];
    (void)sink;
    // A multiplication and an addition for each of 64 bytes.
    return 2.0 * 64 * 16 * kProductSteps * num_threads / seconds / 1e9;
}
#elif defined(__AVX2__)
double int8_pass_gop_s(int num_threads) {
    std::vector<int> sinks(num_threads);
    const double seconds = seconds_of(num_threads, [&](int i) {
        // Without VNNI a product of bytes is three instructions: to 16 bits, to 32 bits, into the sum.
        __m256i sums[8];
        for (auto& sum : sums) sum = _mm256_set1_epi32(i);
        __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2);
        const __m256i ones = _mm256_set1_epi16(1);
        for (int64_t step = 0; step < kProductSteps; ++step) {
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                asm volatile("" : "+x"(a), "+x"(b));
                const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
                sums[k] = _mm256_add_epi32(sums[k], pairs);
            }
        }
        __m256i all = sums[0];
        for (int k = 1; k < 8; ++k) all = _mm256_add_epi32(all, sums[k]);
        sinks[i] = _mm256_extract_epi32(all, 0);
    });
    volatile int sink = sinks[0];
    (void)sink;
    return 2.0 * 32 * 8 * kProductSteps * num_threads / seconds / 1e9;
}
#endif

#if defined(__AVX512VNNI__) || defined(__AVX2__)
// The best pass: another program takes from some, none adds to any.
double int8_gop_s(int num_threads) {
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        const double rate = int8_pass_gop_s(num_threads);
        if (rate > best) best = rate;
    }
    return best;
}
#endif

}  // namespace

int main(int argc, char** argv) {
    const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
    std::printf("{\"read_gb_s\": %.2f, \"int8_gop_s\": ", read_gb_s(num_threads));
#if defined(__AVX512VNNI__) || defined(__AVX2__)
    std::printf("%.1f}\n", int8_gop_s(num_threads));
#else
    std::printf("null}\n");
#endif
}
