package serve

import "sandbox.internal/openapi/serve/internal/problem"

// Problem is an error as the client receives it. It is an error itself, so that code
// close to HTTP returns one instead of inventing a kind.
type Problem = problem.Problem

// Invalid is a request that breaks the contract: 400. The message names the place
// and the rule, such as "body/timeout: number must be at least 60".
func Invalid(format string, args ...any) *Problem { return problem.Invalid(format, args...) }

// Unauthorized is a missing or wrong key: 401.
func Unauthorized(format string, args ...any) *Problem { return problem.Unauthorized(format, args...) }

// Forbidden is a valid key whose scope does not allow the request: 403.
func Forbidden(format string, args ...any) *Problem { return problem.Forbidden(format, args...) }
