// Package sandbox is the Go client of the sandbox service: it creates sandboxes, runs commands and
// code in them, moves files, and follows what happens.
//
//	client, err := sandbox.New(nil) // $SANDBOX_URL, $SERVICE_API_KEY
//	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: "python:3.12"})
//	defer box.Delete(context.WithoutCancel(ctx))
//	result, err := box.Commands.Run(ctx, "python3 --version", nil)
//
// Everything goes through the service's own URL and needs its key alone, what is inside a sandbox
// included (/v1/sandboxes/{id}/proxy/44772): a client works wherever the service can be reached.
//
// Streams resume by themselves. When a connection is cut, or silent for longer than the service's
// pings allow, the client connects again and goes on after the last event that it has: no event is
// delivered twice, and none is lost. A stream that cannot be resumed, and one that could not be for
// [Options].ResumeLimit, ends with a [*StreamError].
//
// Errors of the service are an [*Error]; test for their kinds with errors.Is and [ErrNotFound],
// [ErrConflict] and so on. Requests that may be repeated are, a few times; what makes something
// always may be, because it carries an Idempotency-Key. The daemon of a sandbox keeps the keys of
// commands, cells, contexts and terminals in memory: when it was started again between a request
// and its repetition, the error is [ErrConflict], and whether the request took effect is not known.
// Redirections are not followed, and answers are read up to a bound.
//
// A [Client] and what it returns are safe for concurrent use, except for iterators, readers and
// terminals, which belong to one goroutine each.
package sandbox
