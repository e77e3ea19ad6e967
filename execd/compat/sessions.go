package compat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/command"
	"sandbox.internal/openapi/serve"
)

// maxSessions is how many sessions there may be at a time.
const maxSessions = 1000

// sessions are shells that seem to go on from one command to the next: each command is one of execd, whose shell starts with what the
// one before has left behind. Its variables, functions and working directory are kept in a folder.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

type session struct {
	folder string
	turn   chan struct{} // held by the command that runs

	mu      sync.Mutex
	command string // its id
	ended   bool
}

// script runs a session's command. The folder is the quoted one of the session; the working directory is that of the script. A shell that
// is not bash keeps what is exported. Read-only variables cannot be set again, so they are left out.
const script = `set -- "$PWD"
__session=FOLDER
[ -f "$__session/state" ] && . "$__session/state"
cd -- "$1"
set --
__session_keep() {
	if [ -n "$BASH_VERSION" ]; then
		declare -p | while IFS= read -r line; do
			case $line in "declare -"[a-zA-Z-]*) flags=${line#declare -}; case ${flags%% *} in *r*) continue ;; esac ;; esac
			printf '%s\n' "$line"
		done
		declare -f
	else
		export -p
	fi 2>/dev/null >"$__session/state.new" && mv -f -- "$__session/state.new" "$__session/state"
	pwd >"$__session/folder"
}
trap __session_keep EXIT
. "$__session/command"
`

func (h *handler) createSession(c echo.Context) error {
	var body struct {
		Cwd string `json:"cwd"`
	}
	if err := readJSON(c, &body); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if body.Cwd != "" {
		infos, err := h.Files.Info([]string{body.Cwd})
		if err != nil {
			return serve.Invalid("body/cwd: %v", err)
		}
		body.Cwd = infos[body.Cwd].Path
		if info, err := os.Stat(body.Cwd); err != nil || !info.IsDir() {
			return serve.Invalid("body/cwd: %s is not a directory", body.Cwd)
		}
	}
	id, err := h.sessions.add(body.Cwd)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"session_id": id})
}

// add makes a session whose first command runs in a folder, the default when it is empty.
func (s *sessions) add(cwd string) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= maxSessions {
		return "", &serve.Problem{Status: http.StatusServiceUnavailable, Message: "there are too many sessions: delete some, and try again"}
	}
	folder, err := os.MkdirTemp("", "execd-session-")
	if err != nil {
		return "", err
	}
	if cwd != "" {
		if err := os.WriteFile(filepath.Join(folder, "folder"), []byte(cwd+"\n"), 0o600); err != nil {
			return "", errors.Join(err, os.RemoveAll(folder))
		}
	}
	var random [16]byte
	rand.Read(random[:]) // crypto/rand.Read never returns an error
	id = hex.EncodeToString(random[:])
	if s.byID == nil {
		s.byID = map[string]*session{}
	}
	s.byID[id] = &session{folder: folder, turn: make(chan struct{}, 1)}
	return id, nil
}

func (s *sessions) find(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.byID[id]; found != nil {
		return found, nil
	}
	return nil, noSession(id)
}

func (s *sessions) take(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byID[id]
	if found == nil {
		return nil, noSession(id)
	}
	delete(s.byID, id)
	return found, nil
}

func noSession(id string) error {
	return &serve.Problem{Status: http.StatusNotFound, Message: "there is no session " + quote(id)}
}

// runInSession runs a command as POST /command does, after the one before has ended.
func (h *handler) runInSession(c echo.Context) error {
	serve.WithoutDeadline(c.Request()) // the body is read twice, and the answer is a stream
	var body struct {
		Command string `json:"command"`
		Cwd     string `json:"cwd"`
		Timeout int64  `json:"timeout"`
	}
	if err := readJSON(c, &body); errors.Is(err, io.EOF) {
		return serve.Invalid("body: is required")
	} else if err != nil {
		return err
	}
	if strings.TrimSpace(body.Command) == "" {
		return serve.Invalid("body/command: must not be empty")
	}
	s, err := h.sessions.find(c.Param("id"))
	if err != nil {
		return err
	}
	if err := s.enter(c.Request().Context()); err != nil {
		return err
	}
	defer s.leave()
	if err := os.WriteFile(filepath.Join(s.folder, "command"), []byte(body.Command+"\n"), 0o600); err != nil {
		return s.gone(c.Param("id"), err)
	}
	request := map[string]any{"command": strings.Replace(script, "FOLDER", quote(s.folder), 1), "timeout": body.Timeout}
	if body.Cwd != "" {
		request["cwd"] = body.Cwd
	} else if folder := s.workingFolder(); folder != "" {
		request["cwd"] = folder
	}
	encoded, err := json.Marshal(request)
	if err != nil {
		return err
	}
	nested := moved(c.Request(), "/command", nil)
	nested.Header = nested.Header.Clone()
	nested.Header.Set("Content-Type", "application/json")
	nested.Body, nested.ContentLength = io.NopCloser(bytes.NewReader(encoded)), int64(len(encoded))
	// The client may leave; the session is the command's until that has ended.
	h.server.ServeHTTP(&startedWriter{ResponseWriter: c.Response(), session: s}, nested)
	return h.await(s)
}

// await waits until the command that was started last has ended.
func (h *handler) await(s *session) error {
	s.mu.Lock()
	id := s.command
	s.mu.Unlock()
	if id == "" {
		return nil // it was refused
	}
	running, err := h.Commands.Get(id)
	if errors.Is(err, command.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	<-running.Done()
	return nil
}

// enter waits for the command before. It returns an error when the client leaves.
func (s *session) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) leave() {
	s.mu.Lock()
	s.command = ""
	s.mu.Unlock()
	<-s.turn
}

// gone is the error of a session that was deleted while a command waited for its turn.
func (s *session) gone(id string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return noSession(id)
	}
	return err
}

// workingFolder returns where the command before was in the end, "" for the default, which also stands for a folder that is gone.
func (s *session) workingFolder() string {
	kept, err := os.ReadFile(filepath.Join(s.folder, "folder"))
	if err != nil {
		return ""
	}
	folder := strings.TrimSuffix(string(kept), "\n")
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return ""
	}
	return folder
}

// deleteSession ends a session and the command that runs in it.
func (h *handler) deleteSession(c echo.Context) error {
	s, err := h.sessions.take(c.Param("id"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ended = true
	running := s.command
	s.mu.Unlock()
	if running != "" {
		if err := h.Commands.Interrupt(running); err != nil && !errors.Is(err, command.ErrNotFound) {
			return err
		}
	}
	if err := os.RemoveAll(s.folder); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, struct{}{})
}

// startedWriter notes the id of the command that a session runs.
type startedWriter struct {
	http.ResponseWriter
	session *session
}

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *startedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *startedWriter) WriteHeader(status int) {
	w.session.mu.Lock()
	w.session.command = w.Header().Get("X-Command-ID")
	w.session.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

// quote returns the text as one word of a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
