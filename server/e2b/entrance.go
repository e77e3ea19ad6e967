package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

const (
	// daemonPort is the port of E2B's daemon, codePort that of its code interpreter.
	daemonPort, codePort = 49983, 49999

	idHeader    = "E2b-Sandbox-Id"
	portHeader  = "E2b-Sandbox-Port"
	tokenHeader = "X-Access-Token"

	// The headers that execd/e2b reads.
	defaultUserHeader      = "X-E2b-Default-User"
	defaultDirectoryHeader = "X-E2b-Default-Directory"
	sandboxHeader          = "X-E2b-Own-Sandbox"
	templateHeader         = "X-E2b-Own-Template"

	signatureName, expirationName = "signature", "signature_expiration"

	// maxSearches is how many searches for the sandbox of a signature there are at a time.
	maxSearches = 2
)

// destination is what a request to a sandbox names. Without an ID it is the signed URL of a file,
// which names no sandbox.
type destination struct {
	id   string
	port int
}

// destination returns what a request to a sandbox names: by headers, by its host, or by the
// signature of a file.
func (e *Edge) destination(r *http.Request) (destination, bool) {
	if id := r.Header.Get(idHeader); id != "" {
		port := daemonPort
		if text := r.Header.Get(portHeader); text != "" {
			port = parsePort(text)
		}
		return destination{id, port}, true
	}
	if name, ok := e.label(r.Host); ok {
		port, id, _ := strings.Cut(name, "-")
		return destination{id, parsePort(port)}, true
	}
	if r.URL.Path == "/files" && isSignature(r.URL.Query().Get(signatureName)) {
		return destination{"", daemonPort}, true
	}
	return destination{}, false
}

// parsePort returns the number of a port, 0 for what is none.
func parsePort(text string) int {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(number)
}

// label returns the first label of a host below the domain.
func (e *Edge) label(host string) (string, bool) {
	if e.Domain == "" {
		return "", false
	}
	domain := bare(e.Domain)
	name, ok := strings.CutSuffix(bare(host), "."+domain)
	return name, ok && !strings.Contains(name, ".") && strings.Contains(name, "-")
}

// bare returns a host without its port and a last dot, in lower case.
func bare(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// enter answers a request to a sandbox.
func (e *Edge) enter(w http.ResponseWriter, r *http.Request, to destination) {
	if to.id == "" {
		refused := e.attempt(r, func() *refusal {
			if id, ok := e.search(r); ok {
				to.id = id
				return nil
			}
			return unauthenticated("signature: is not one for this file, user and operation of a sandbox that runs, or has expired")
		})
		if refused != nil {
			refused.send(w)
			return
		}
	}
	id, ok := internalID(to.id)
	if !ok || to.port == 0 {
		sendUnreachable(w, to.id, "the sandbox was not found")
		return
	}
	if to.port != daemonPort && to.port != codePort {
		e.traffic.ServeHTTP(w, withVisit(r, visit{id, to.port}))
		return
	}
	var token string
	var refused *refusal
	// A client asks with /health whether the sandbox runs, which is no reason to resume it.
	wakes := r.URL.Path != healthPath
	target, unreachable := e.ready(r.Context(), id, wakes, func(target reachable) bool {
		refused = e.attempt(r, func() (failed *refusal) {
			token, failed = tokenFor(r, to.port, target, e.Clock())
			return failed
		})
		return refused == nil
	})
	switch {
	case refused != nil:
		refused.send(w)
	case unreachable != "":
		sendUnreachable(w, to.id, unreachable)
	default:
		out := &unreachableWriter{ResponseWriter: w, id: to.id}
		e.Next.ServeHTTP(out, toExecd(r, id, token, target))
		out.finish()
	}
}

// unreachableWriter answers in the place of the service when that finds no sandbox that runs: it
// may have ended since it was looked for. Answers of execd pass.
type unreachableWriter struct {
	http.ResponseWriter
	id     string
	status int // of an answer that is held back; 0 for none
	held   bytes.Buffer
	begun  bool
}

// serviceCode begins an error of the service, whose codes are in capitals; those of execd/e2b are
// not.
var serviceCode = regexp.MustCompile(`^\s*\{\s*"code"\s*:\s*"[A-Z_]+"`)

// maxHeld bounds an error that is held back, in bytes. The service's have fewer.
const maxHeld = 64 << 10

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *unreachableWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *unreachableWriter) WriteHeader(status int) {
	if w.begun || w.status != 0 {
		return
	}
	if status == http.StatusConflict || status == http.StatusNotFound || status == http.StatusBadGateway {
		w.status = status
		return
	}
	w.begun = status >= http.StatusOK
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *unreachableWriter) Write(p []byte) (int, error) {
	if !w.begun && w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.begun {
		return w.ResponseWriter.Write(p)
	}
	if w.held.Len()+len(p) > maxHeld {
		w.release()
		return w.ResponseWriter.Write(p)
	}
	return w.held.Write(p)
}

// FlushError keeps a [http.ResponseController] from sending the headers of an answer that is held
// back.
func (w *unreachableWriter) FlushError() error {
	if !w.begun && w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// release sends what is held back as it is.
func (w *unreachableWriter) release() {
	w.begun = true
	w.ResponseWriter.WriteHeader(w.status)
	_, _ = w.ResponseWriter.Write(w.held.Bytes()) // a client that is gone by now needs no answer
}

// finish ends the answer.
func (w *unreachableWriter) finish() {
	switch {
	case w.begun || w.status == 0:
	case serviceCode.Match(w.held.Bytes()):
		for _, name := range []string{"Content-Length", "Retry-After"} {
			w.Header().Del(name)
		}
		sendUnreachable(w.ResponseWriter, w.id, "the sandbox is not running")
	default:
		w.release()
	}
}

// refusal is why a request is not let in.
type refusal struct {
	status        int
	code, message string // code is one of Connect
	retryAfter    int    // seconds; 0 for none
}

func unauthenticated(message string) *refusal {
	return &refusal{status: http.StatusUnauthorized, code: "unauthenticated", message: message}
}

// send answers with the refusal.
func (f *refusal) send(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	sendJSON(w, f.status, map[string]any{"code": f.code, "message": f.message})
}

// attempt runs a check of a token or a signature. A refusal counts as a wrong key does, and an
// address with too many of them is refused before the check.
func (e *Edge) attempt(r *http.Request, check func() *refusal) *refusal {
	var refused *refusal
	err := e.Attempt(r, func() error {
		if refused = check(); refused != nil && refused.status == http.StatusUnauthorized {
			return serve.Unauthorized("%s", refused.message)
		}
		return nil
	})
	var problem *serve.Problem
	if refused == nil && errors.As(err, &problem) {
		refused = &refusal{problem.Status, "resource_exhausted", problem.Message, int(math.Ceil(problem.RetryAfter.Seconds()))}
	}
	return refused
}

// sendUnreachable answers that a sandbox or a port of it cannot be reached.
func sendUnreachable(w http.ResponseWriter, id, message string) {
	sendJSON(w, http.StatusBadGateway, map[string]any{
		"sandboxId": fmt.Sprintf("%.64s", id), "message": message, "code": http.StatusBadGateway,
	})
}

// reachable is a sandbox that runs.
type reachable struct {
	token           string
	daemon          string // the address of its execd
	template        string // the id of its template
	user, directory string // the defaults of its template
	private         bool
}

// ready returns a sandbox that answers requests, or why there is none. It resumes a paused one that
// is to be resumed by traffic, if the request is one that wakes it and is let in; admit reports the
// latter.
func (e *Edge) ready(ctx context.Context, id string, wakes bool, admit func(reachable) bool) (reachable, string) {
	const over = "the sandbox is not running"
	sandbox, err := e.Backend.Get(ctx, id)
	if err != nil {
		return reachable{}, "the sandbox was not found"
	}
	if state := sandbox.Status.State; state.Transient() && isAlive(state) {
		if sandbox, err = e.Backend.AwaitStable(ctx, id, changeWait*time.Second); err != nil {
			return reachable{}, over
		}
	}
	state := sandbox.Status.State
	sleeps := e.Sleeper != nil && sandbox.Wakes()
	if state != lifecycle.StateRunning && (state != lifecycle.StatePaused || !wakes || !sleeps && sandbox.Metadata[autoResumeKey] != yes) {
		return reachable{}, over
	}
	target, err := e.locate(ctx, sandbox)
	if err != nil || target.token == "" { // every client could make the signatures of an empty token
		return reachable{}, over
	}
	if !admit(target) {
		return reachable{}, "the request was not let in"
	}
	if state == lifecycle.StateRunning {
		return target, ""
	}
	if sleeps {
		// It may sleep again by the time that it is looked at: then the request wakes it.
		if err = e.Sleeper.Wake(ctx, id); err == nil {
			sandbox.Status.State = lifecycle.StateRunning
		}
	} else {
		sandbox, err = e.wake(ctx, sandbox)
	}
	if err == nil {
		target, err = e.locate(ctx, sandbox)
	}
	if err != nil || sandbox.Status.State != lifecycle.StateRunning {
		e.log(ctx, err, id, "cannot resume a sandbox that is asked for")
		return reachable{}, over
	}
	return target, ""
}

// locate returns how a sandbox is reached.
func (e *Edge) locate(ctx context.Context, sandbox lifecycle.Sandbox) (reachable, error) {
	location, err := e.Backend.Locate(ctx, sandbox.ID, lifecycle.DaemonPort)
	return reachable{
		token: location.Token, daemon: location.Daemon, user: sandbox.Metadata[userKey], directory: sandbox.Metadata[directoryKey],
		template: infoOf(sandbox).TemplateID, private: e.isPrivate(sandbox),
	}, err
}

// wake resumes a paused sandbox, which then lives as long as it was to live the last time.
func (e *Edge) wake(ctx context.Context, sandbox lifecycle.Sandbox) (lifecycle.Sandbox, error) {
	timeout, err := strconv.ParseInt(sandbox.Metadata[timeoutKey], 10, 64)
	if err != nil || timeout < 1 || timeout > maxTimeout {
		timeout = defaultTimeout
	}
	deadline := e.Clock().Add(min(time.Duration(timeout)*time.Second, e.MaxTimeout(sandbox.Owner)))
	if expiry := e.expiryFor(deadline, sandbox.Metadata); expiry.After(sandbox.ExpiresAt) {
		_, err := e.Backend.Renew(ctx, sandbox.ID, expiry)
		if err != nil && !e.outlives(ctx, sandbox.ID, expiry) {
			return sandbox, err
		}
	}
	// The deadline first: the old one has come, and the sandbox would be paused again.
	text := stamp(deadline)
	if _, err := e.Backend.UpdateMetadata(ctx, sandbox.ID, map[string]*string{deadlineKey: &text}); err != nil {
		return sandbox, err
	}
	if err := e.Backend.Resume(ctx, sandbox.ID); err != nil && !isOver(err) { // another request resumed it
		return sandbox, err
	}
	e.deadlines.set(sandbox.ID, deadline)
	return e.Backend.AwaitStable(ctx, sandbox.ID, changeWait*time.Second)
}

// outlives reports whether a sandbox does not expire before a time: [Edge.Keep] may have extended
// the expiry since the sandbox was read.
func (e *Edge) outlives(ctx context.Context, id string, until time.Time) bool {
	sandbox, err := e.Backend.Read(ctx, id)
	return err == nil && !until.After(sandbox.ExpiresAt)
}

// healthPath is where execd says that it runs. It needs no token.
const healthPath = "/health"

// codePath are the paths of the code interpreter that clients send no token to. The sandbox's id,
// which cannot be guessed, lets them in, or the traffic token of a private sandbox.
var codePath = regexp.MustCompile(`^/contexts(/[0-9A-Za-z-]+(/restart)?)?$`)

// tokenFor returns the token that a request is forwarded with, or why the request is refused.
// Without the sandbox's token a client may do what needs none, and nothing else.
func tokenFor(r *http.Request, port int, target reachable, now time.Time) (string, *refusal) {
	path := r.URL.Path
	if port == codePort && path != healthPath && path != "/execute" && !codePath.MatchString(path) {
		return "", &refusal{
			status: http.StatusNotFound, code: "not_found", message: fmt.Sprintf("path %.128q: the code interpreter has no such operation", path),
		}
	}
	if sent := r.Header.Get(tokenHeader); sent != "" {
		if !reach.Equal(sent, target.token) { // the service would refuse it, but a paused sandbox would be resumed
			return "", unauthenticated("header X-Access-Token: is not this sandbox's token")
		}
		return target.token, nil
	}
	switch {
	case path == healthPath:
		return target.token, nil
	case port == codePort && path != "/execute":
		if target.private && !reach.Equal(r.Header.Get(trafficHeader), trafficToken(target.token)) {
			return "", &refusal{status: http.StatusForbidden, code: "permission_denied", message: needsTraffic}
		}
		return target.token, nil
	case port == daemonPort && path == "/files" && r.URL.Query().Get(signatureName) != "":
		if !isSigned(r, target.token, now) {
			return "", unauthenticated("signature: is not one for this file, user and operation, or has expired")
		}
		return target.token, nil
	}
	return "", unauthenticated("header X-Access-Token: is required")
}

// toExecd returns the request as the service forwards it to the sandbox's execd.
func toExecd(r *http.Request, id, token string, target reachable) *http.Request {
	ours := *r
	query := r.URL.Query()
	query.Del(signatureName)
	query.Del(expirationName)
	ours.URL = &url.URL{Path: "/" + id + "/" + strconv.Itoa(lifecycle.DaemonPort) + "/e2b" + r.URL.Path, RawQuery: query.Encode()}
	ours.RequestURI = ours.URL.RequestURI()
	ours.Header = r.Header.Clone()
	for _, name := range []string{idHeader, portHeader, tokenHeader, reach.KeyHeader, sandboxHeader, templateHeader, defaultUserHeader, defaultDirectoryHeader} {
		ours.Header.Del(name)
	}
	if r.Header.Get(tokenHeader) == "" {
		ours.Header.Del("Authorization") // a signature is for the user that its URL names, and no other
	}
	ours.Header.Set(lifecycle.TokenHeader, token)
	ours.Header.Set(sandboxHeader, externalID(id))
	for name, value := range map[string]string{
		templateHeader: url.PathEscape(target.template), defaultUserHeader: target.user, defaultDirectoryHeader: target.directory,
	} {
		if value != "" {
			ours.Header.Set(name, value)
		}
	}
	return &ours
}

// signatureLength is the length of a signature: v1_ and a SHA-256 in base64.
const signatureLength = 3 + 43

func isSignature(text string) bool {
	return len(text) == signatureLength && strings.HasPrefix(text, "v1_")
}

// isSigned reports whether the signature of a request for a file was made with a sandbox's token
// and has not expired.
func isSigned(r *http.Request, token string, now time.Time) bool {
	query := r.URL.Query()
	operation := "read"
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		operation = "write"
	}
	signed := query.Get("path") + ":" + operation + ":" + query.Get("username") + ":" + token
	if until := query.Get(expirationName); until != "" {
		seconds, err := strconv.ParseInt(until, 10, 64)
		if err != nil || now.Unix() >= seconds {
			return false
		}
		signed += ":" + until
	}
	sum := sha256.Sum256([]byte(signed))
	return reach.Equal(query.Get(signatureName), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}

// search returns the sandbox that a signature is for: the URL of a file names none when clients
// reach all sandboxes by one URL.
func (e *Edge) search(r *http.Request) (string, bool) {
	select {
	case e.searches <- struct{}{}:
		defer func() { <-e.searches }()
	case <-r.Context().Done():
		return "", false
	}
	now := e.Clock()
	reached := lifecycle.Filter{States: []lifecycle.State{
		lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming,
	}}
	for number := 1; ; number++ {
		listing, err := e.Backend.List(r.Context(), reached, lifecycle.Page{Number: number, Size: lifecycle.MaxPageSize})
		if err != nil {
			e.log(r.Context(), err, "", "cannot list the sandboxes")
			return "", false
		}
		for _, sandbox := range listing.Items {
			if sandbox.Status.State != lifecycle.StateRunning && (e.Sleeper == nil || !sandbox.Wakes()) {
				continue
			}
			location, err := e.Backend.Locate(r.Context(), sandbox.ID, lifecycle.DaemonPort)
			if err == nil && location.Token != "" && isSigned(r, location.Token, now) {
				return sandbox.ID, true
			}
		}
		if number*lifecycle.MaxPageSize >= listing.Total {
			return "", false
		}
	}
}
