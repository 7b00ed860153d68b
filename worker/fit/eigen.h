/* Eigenvectors of a real symmetric matrix: Householder tridiagonalisation and implicit QL
 * (Bowdler, Martin, Reinsch, Wilkinson, "The QR and QL algorithms for symmetric matrices",
 * 1968), f64, one thread. */
#ifndef WORKER_FIT_EIGEN_H
#define WORKER_FIT_EIGEN_H

#include "common/base/base.h"

/* a (n,n) symmetric in; out: row i is the unit eigenvector of values[i] (n), the largest
 * first.  -ENOMEM; -EDOM: no convergence (a is not finite). */
int eigen_symmetric(double *a, uint32_t n, double *values);

/* Makes the rows of q (r,n), r <= n, orthonormal in their order, by Gram-Schmidt done twice.  A row
 * that depends on those above it becomes zero; returns the number of other rows. */
uint32_t eigen_orthonormal(double *q, uint32_t r, uint32_t n);

#endif
