// Package console serves the web console at /console: a page of its own assets, and sessions for
// it. A person types an API key once; the browser then has a session that acts with the key's name
// and role, and the key itself is kept neither there nor here.
//
// The console calls the published API below /console/api, where a session takes the place of a key:
// /console/api/v1/sandboxes is /v1/sandboxes. Every such request needs two secrets. The first is a
// cookie that scripts cannot read; browsers send it to every port of the host, so it alone proves
// nothing. The other is kept by the browser for the console's origin alone and sent in a header.
// Pages of sandboxes have neither: what the service passes on has an opaque origin (see
// server/proxy), and what is on another port has another storage.
package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/static"
)

// assets are made by scripts/console.sh from the directory web.
//
//go:embed assets
var assets embed.FS

//go:embed page.html
var page string

const (
	home       = "/console"
	assetsPath = home + "/assets/"
	apiPath    = home + "/api"

	// lifetime is how long a session lasts.
	lifetime = 12 * time.Hour
	// maxBody bounds the bodies of this package's own requests, in bytes.
	maxBody = 8 << 10
)

// policy of the assets, and with the nonce of a page that of the page. The terminal writes style
// sheets into its page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'%s; " +
	"img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Options configures a [Console]. Identify is required.
type Options struct {
	// Identify returns the holder of the API key that a request to sign in has, or the error to
	// answer with.
	Identify func(r *http.Request, key string) (lifecycle.Principal, error)
	// Alive returns what ends when the API key of a holder ceases to be valid, and a session with
	// it; nil means that it does not. Optional.
	Alive func(holder lifecycle.Principal) context.Context
	// Open says that the service has no keys and admits every request.
	Open bool
	// Lifetime is how long a session lasts; 0 means 12 hours.
	Lifetime time.Duration
	// Shared makes sessions those of every replica of the service; nil means that there is one.
	Shared *Shared
}

// Console is the page and its sessions. It may be used by several goroutines at once.
type Console struct {
	options  Options
	sessions *sessions
	files    *static.Files
	page     *template.Template
}

// New prepares a console without sessions. It fails when something embedded is broken, which is an
// error of the build.
func New(options Options) (*Console, error) {
	if options.Lifetime == 0 {
		options.Lifetime = lifetime
	}
	c := &Console{
		options:  options,
		sessions: newSessions(options.Shared),
		files:    static.New(fmt.Sprintf(policy, "")),
	}
	entries, err := assets.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	for _, entry := range entries {
		data, err := assets.ReadFile(path.Join("assets", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		if name, packed := strings.CutSuffix(entry.Name(), ".gz"); packed {
			c.files.AddPacked(assetsPath+name, data)
		} else {
			c.files.Add(assetsPath+name, data)
		}
	}
	c.page, err = template.New("page").Funcs(template.FuncMap{
		"asset": func(name string) string { return c.files.URL(assetsPath + name) },
	}).Parse(page)
	return c, err
}

// Register puts the console's own routes on the server. None is in the contract: they are between
// the page and its server.
func (c *Console) Register(server *serve.Server) {
	e := server.Echo()
	named := func(operation string) echo.MiddlewareFunc { return server.Named(operation, false) }
	asset := server.Named("consoleAsset", true)
	e.GET(home, c.showPage, asset)
	e.GET(home+"/", func(ctx echo.Context) error { return ctx.Redirect(http.StatusPermanentRedirect, home) }, asset)
	for _, at := range c.files.Paths() {
		e.GET(at, echo.WrapHandler(c.files), asset)
	}
	signIn := func(ctx echo.Context) error { return c.signIn(ctx, server) }
	issueTicket := func(ctx echo.Context) error { return c.issueTicket(ctx, server) }
	e.GET(home+"/session", c.readSession, named("readConsoleSession"))
	e.POST(home+"/session", signIn, named("signInToConsole"))
	e.DELETE(home+"/session", c.signOut, named("signOutOfConsole"))
	e.POST(home+"/tickets", issueTicket, named("issueConsoleTicket"))
}

// Close ends every session.
func (c *Console) Close() { c.sessions.close() }

// showPage answers with the page, which holds nothing that depends on who asks.
func (c *Console) showPage(ctx echo.Context) error {
	nonce := rand.Text()
	var html bytes.Buffer
	if err := c.page.Execute(&html, struct{ Nonce string }{nonce}); err != nil {
		return err
	}
	header := ctx.Response().Header()
	static.Keep(header, fmt.Sprintf(policy, " 'nonce-"+nonce+"'"))
	header.Set("Cache-Control", "no-store")
	return ctx.HTMLBlob(http.StatusOK, html.Bytes())
}

// shown is what the page gets of its session.
type shown struct {
	Name      string         `json:"name"`
	Role      lifecycle.Role `json:"role"`
	ExpiresAt time.Time      `json:"expiresAt"`
	Token     string         `json:"token,omitempty"` // once, when the session begins
}

func (c *Console) readSession(ctx echo.Context) error {
	answer := struct {
		KeyRequired bool   `json:"keyRequired"`
		Session     *shown `json:"session"`
	}{KeyRequired: !c.options.Open}
	if s, err := c.sessions.of(ctx.Request()); err == nil {
		answer.Session = &shown{
			Name:      s.principal.Name,
			Role:      s.principal.Role,
			ExpiresAt: s.expiresAt,
		}
	}
	ctx.Response().Header().Set("Cache-Control", "no-store")
	return ctx.JSON(http.StatusOK, answer)
}

func (c *Console) signIn(ctx echo.Context, server *serve.Server) error {
	r := ctx.Request()
	if err := fromOwnPage(r); err != nil {
		return err
	}
	var body struct {
		Key string `json:"key"`
	}
	if err := readJSON(r, &body); err != nil {
		return err
	}
	var principal lifecycle.Principal
	err := server.Attempt(r, func() (err error) {
		principal, err = c.options.Identify(r, body.Key)
		return err
	})
	if err != nil {
		return err
	}
	serve.LogField(r.Context(), "key_name", principal.Name)
	return server.Admitted(principal, func(ctx echo.Context) error {
		if err := c.sessions.end(r); err != nil {
			return err
		}
		var key context.Context
		if c.options.Alive != nil {
			key = c.options.Alive(principal)
		}
		s, cookie, token, err := c.sessions.begin(r.Context(), principal, key, c.options.Lifetime)
		if err != nil {
			return err
		}
		http.SetCookie(ctx.Response(), ofBrowser(r, cookie, s.expiresAt))
		ctx.Response().Header().Set("Cache-Control", "no-store")
		return ctx.JSON(
			http.StatusCreated,
			shown{Name: principal.Name, Role: principal.Role, ExpiresAt: s.expiresAt, Token: token},
		)
	})(ctx)
}

func (c *Console) signOut(ctx echo.Context) error {
	r := ctx.Request()
	if err := fromOwnPage(r); err != nil {
		return err
	}
	if err := c.sessions.end(r); err != nil {
		return err
	}
	http.SetCookie(ctx.Response(), ofBrowser(r, "", time.Unix(1, 0)))
	return ctx.NoContent(http.StatusNoContent)
}

func (c *Console) issueTicket(ctx echo.Context, server *serve.Server) error {
	r := ctx.Request()
	if err := fromOwnPage(r); err != nil {
		return err
	}
	var s *session
	err := server.Attempt(r, func() (err error) {
		s, err = c.sessions.of(r)
		return err
	})
	if err != nil {
		return err
	}
	var body struct {
		Path string `json:"path"`
	}
	if err := readJSON(r, &body); err != nil {
		return err
	}
	ctx.Response().Header().Set("Cache-Control", "no-store")
	return ctx.JSON(http.StatusCreated, struct {
		Ticket string `json:"ticket"`
	}{c.sessions.ticket(s, body.Path)})
}

func readJSON(r *http.Request, into any) error {
	contentType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || contentType != "application/json" {
		return serve.Invalid("header Content-Type: must be application/json")
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return serve.Invalid("body: %v", err)
	case len(data) > maxBody:
		return &serve.Problem{Status: http.StatusRequestEntityTooLarge, Code: "REQUEST_TOO_LARGE",
			Message: fmt.Sprintf("body: must be at most %d bytes", maxBody)}
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return serve.Invalid("body: %v", err)
	}
	return nil
}

// clientName is what requests of the console call their client.
const clientName = "sandbox-console"

// Handler passes requests below /console/api on to next as requests to the API, in the name of
// their session, and every other request as it is. A request that its session does not admit goes
// to next too, where [Caller] has the error: so it is answered, counted and logged as a request
// with a wrong key.
func (c *Console) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := below(r)
		if inner == nil {
			next.ServeHTTP(w, r)
			return
		}
		s, err := c.admit(r, inner)
		header := inner.Header.Clone()
		for _, name := range []string{"Cookie", "Origin", tokenHeader} {
			header.Del(name)
		}
		// What the sandbox's daemon records as the client: not the browser, which anybody may use.
		header.Set("User-Agent", clientName)
		inner.Header = header
		visit := &caller{err: err}
		ctx := context.WithValue(inner.Context(), callerKey{}, visit)
		if err == nil {
			visit.principal = s.principal
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(s.alive, func() { cancel(errEnded) })()
			if c.options.Shared != nil {
				go c.options.Shared.watch(ctx, s)
			}
		}
		next.ServeHTTP(w, inner.WithContext(ctx))
	})
}

type callerKey struct{}

type caller struct {
	principal lifecycle.Principal
	err       error
}

// Caller returns who sends a request that came through the console, or why the session does not let
// it in. It returns false for every other request.
func Caller(ctx context.Context) (principal lifecycle.Principal, ok bool, err error) {
	known, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return principal, false, nil
	}
	return known.principal, true, known.err
}
