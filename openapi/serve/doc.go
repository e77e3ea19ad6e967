// Package serve is what both services wrap around their generated echo handlers:
// the key check and the validation of requests against the OpenAPI document, error
// bodies, request ids, the access log, measurements and the audit log. Package respond
// writes long bodies; package listen serves connections, with bounds and a graceful stop.
//
// A service builds a [Server] from its document, registers its generated handlers
// on [Server.Echo] with [Server.OperationMiddlewares], and passes the Server to
// [listen.Serve]. A request then passes, from the outside in: request id, access log,
// recovery from panics, routing, and per operation the guard: first the key, then
// parameters and body. Handlers only ever return errors; one place writes them.
//
// The package imports neither the services nor the generated code.
package serve
