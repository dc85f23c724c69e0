/* The C side of num/longdouble.rs: Rust has no long double.
 *
 * Every text is NUL-terminated and carries its length besides. The caller's pointers are valid
 * and its long doubles aligned. */

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(long double) <= 16, "LongDouble reserves 16 bytes");

/* Whether strtod or strtold read all of the text and its value can be used. */
static int whole(const char *text, size_t len, const char *end, int is_inf, int is_zero) {
    if (len == 0 || isspace((unsigned char)text[0]) || end != text + len) return 0;
    return !(errno == EINVAL || (errno == ERANGE && (is_inf || is_zero)));
}

/* Reads a number; 0 if the text is not exactly one, or is out of range or NaN. */
int flagstone_ld_parse(const char *text, size_t len, long double *out) {
    char *end;
    errno = 0;
    long double value = strtold(text, &end);
    if (!whole(text, len, end, isinf(value), value == 0) || isnan(value)) return 0;
    *out = value;
    return 1;
}

/* The same for double. */
int flagstone_double_parse(const char *text, size_t len, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (!whole(text, len, end, isinf(value), value == 0) || isnan(value)) return 0;
    *out = value;
    return 1;
}

void flagstone_ld_from_integer(long long value, long double *out) {
    *out = (long double)value;
}

void flagstone_ld_from_double(double value, long double *out) {
    *out = (long double)value;
}

void flagstone_ld_add(const long double *a, const long double *b, long double *out) {
    *out = *a + *b;
}

int flagstone_ld_is_finite(const long double *value) {
    return isfinite(*value) ? 1 : 0;
}

double flagstone_ld_to_double(const long double *value) {
    return (double)*value;
}

/* Writes the value with 17 decimals; returns the length, or 0 if `size` bytes do not hold it. */
size_t flagstone_ld_format(const long double *value, char *buf, size_t size) {
    int len = snprintf(buf, size, "%.17Lf", *value);
    return len > 0 && (size_t)len < size ? (size_t)len : 0;
}
