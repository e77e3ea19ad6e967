// Package mcp offers sandboxes to agents over the Model Context Protocol: over standard input and
// output ([ServeStdio]), and at /mcp of the service (package endpoint).
//
// Every tool call acts through the public API with the caller's own key, so keys, roles, limits and
// the audit log hold as they do for any other client. A call ends with the request that it came in:
// a command whose client has gone is interrupted. A sandbox that was made here always expires.
package mcp
