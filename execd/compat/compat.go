// Package compat lets the clients of OpenSandbox use execd: it translates their requests and
// answers, and nothing behind it depends on them. docs/compatibility.md has the table of what is
// translated.
//
// A request is one of theirs when it carries a header that the service, if it is configured for
// these clients (package server/compat), gives them with the endpoint of execd. Every other request
// passes unchanged.
package compat

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/code"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

const (
	dialectHeader = "X-Sandbox-Dialect"
	dialect       = "opensandbox"
	// secureHeader carries the token, as an endpoint of a sandbox with secureAccess has it, and
	// tokenHeader is execd's own for it.
	secureHeader = "OpenSandbox-Secure-Access"
	tokenHeader  = "X-EXECD-ACCESS-TOKEN"
	// documentedPort is the port of execd for clients, wherever it listens.
	documentedPort = 44772
	// own begins the paths of the operations that only these clients have. They reach them by other
	// paths.
	own = "/opensandbox"
)

// Options are the engines of execd, and the port that it listens on.
type Options struct {
	Code     *code.Manager
	Commands *command.Manager
	Files    *files.Files
	// Terminals are those that the contract's operations start.
	Terminals *terminal.Manager
	Port      int
}

// handler is execd as clients of OpenSandbox expect it.
type handler struct {
	Options
	server   *serve.Server
	prefixes []string // of execd's own port on execd's own port
	sessions sessions
	ptys     ptys
}

// New registers what these clients have beyond the contract on the server, and returns the server
// with a translation around it.
func New(server *serve.Server, options Options) http.Handler {
	h := &handler{Options: options, server: server}
	for _, port := range []int{documentedPort, options.Port} {
		h.prefixes = append(h.prefixes, fmt.Sprintf("/proxy/%d/", port))
	}
	routes := server.Echo()
	routes.GET(own+"/contexts", h.listContexts, theirsAlone, server.Authenticated, query())
	routes.POST(own+"/replace", h.replace, theirsAlone, server.Authenticated, query())
	routes.GET(own+"/lines", h.lines, theirsAlone, server.Authenticated, query("path", "offset", "limit"))
	routes.POST(own+"/session", h.createSession, theirsAlone, server.Authenticated, query())
	routes.POST(own+"/session/:id/run", h.runInSession, theirsAlone, server.Authenticated, query())
	routes.DELETE(own+"/session/:id", h.deleteSession, theirsAlone, server.Authenticated, query())
	routes.GET(own+"/metrics", h.metrics, theirsAlone, server.Authenticated, query())
	routes.POST(own+"/pty", h.createPTY, theirsAlone, server.Authenticated, query())
	routes.GET(own+"/pty/:id", h.getPTY, theirsAlone, server.Authenticated, query())
	routes.DELETE(own+"/pty/:id", h.deletePTY, theirsAlone, server.Authenticated, query())
	routes.GET(own+"/pty/:id/ws", h.connectPTY, theirsAlone, server.Authenticated, query("pty", "since", "takeover"))
	return h
}

// theirsAlone hides an operation from other clients.
func theirsAlone(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().Header.Get(dialectHeader) != dialect {
			return echo.ErrNotFound
		}
		return next(c)
	}
}

// query refuses query parameters but those, as the contract's operations do.
func query(known ...string) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			for _, name := range slices.Sorted(maps.Keys(c.QueryParams())) {
				if !slices.Contains(known, name) {
					return serve.Invalid("query parameter %.128s: unknown parameter", name)
				}
			}
			return next(c)
		}
	}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = withSecret(r)
	if r.Header.Get(dialectHeader) != dialect || r.URL.RawPath != "" {
		h.server.ServeHTTP(w, r)
		return
	}
	path := r.URL.Path
	for _, prefix := range h.prefixes {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			path = "/" + rest
			break
		}
	}
	query := r.URL.Query()
	var change func([]byte) []byte
	if r.Method+" "+path == "POST /command" {
		change = ourArguments
	}
	if !strings.HasPrefix(path, "/proxy/") { // what is for another port is another program's
		r = withoutNulls(r, change)
	}
	switch target := r.Method + " " + path; {
	case target == "POST /command": // the answer is a stream in the background, too
		r.Header.Set("Accept", respond.MIMEEventStream)
	case r.Method == http.MethodGet && strings.HasPrefix(path, "/command/") && strings.HasSuffix(path, "/logs"):
		if cursor, ok := ourCursor(query); ok {
			r, w = moved(r, path, cursor), &cursorWriter{ResponseWriter: w}
		}
	case target == "GET /code/contexts" && !query.Has("language"):
		r = moved(r, own+"/contexts", query)
	case target == "POST /files/replace" && query.Has("verbose"):
		verbose, err := strconv.ParseBool(query.Get("verbose"))
		if err != nil {
			break // the contract refuses the parameter
		}
		query.Del("verbose")
		r = moved(r, map[bool]string{true: own + "/replace", false: "/files/replace"}[verbose], query)
	case target == "GET /metrics" && len(query) == 0:
		r = moved(r, own+"/metrics", query)
	case target == "GET /files/download" && (query.Has("offset") || query.Has("limit")):
		r = moved(r, own+"/lines", query)
	case isPTY(r.Method, path):
		r = moved(r, own+path, query)
	case path == "/session" || strings.HasPrefix(path, "/session/"):
		r = moved(r, own+path, query)
	case target == "POST /code", r.Method == http.MethodGet && strings.HasPrefix(path, "/code/executions/"):
		w = &resultWriter{ResponseWriter: w}
	}
	h.server.ServeHTTP(w, r)
}

// withSecret returns the request with the secret of secureAccess, which is the token, where execd
// looks for the token. No program in the sandbox may see it. A token that was sent decides alone.
func withSecret(r *http.Request) *http.Request {
	secret := r.Header.Get(secureHeader)
	if secret == "" {
		return r
	}
	clean := *r
	clean.Header = r.Header.Clone()
	switch clean.Header.Get(tokenHeader) {
	case "":
		clean.Header.Set(tokenHeader, secret)
		clean.Header.Del(secureHeader)
	case secret:
		clean.Header.Del(secureHeader)
	}
	return &clean
}

// moved returns the request with another path and query.
func moved(r *http.Request, path string, query url.Values) *http.Request {
	there := *r
	there.URL = &url.URL{Path: path, RawQuery: query.Encode()}
	there.RequestURI = there.URL.RequestURI()
	return &there
}

func (h *handler) listContexts(c echo.Context) error {
	contexts := []map[string]string{}
	for _, context := range h.Code.Contexts("") {
		contexts = append(contexts, map[string]string{"id": context.ID, "language": context.Language})
	}
	return c.JSON(http.StatusOK, contexts)
}
