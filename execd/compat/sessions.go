package compat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"golang.org/x/sys/unix"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/command"
	"sandbox.internal/internal/remove"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
)

// maxSessions is how many sessions there may be at a time.
const maxSessions = 1000

// sessions are shells that seem to go on from one command to the next: each command is one of
// execd, whose shell starts with what the one before has left behind. Its variables, functions and
// working directory are kept in a directory.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

type session struct {
	directory string
	lock      chan struct{} // has one element while a command runs

	mu      sync.Mutex
	started chan struct{} // closed when the command that holds the lock was started or refused; nil when none holds it
	command string        // its id, "" until it was started
	ended   bool
}

// script runs a session's command. The directory is the quoted one of the session; the working
// directory is that of the script. A shell that is not bash keeps what is exported, and execd's own
// shell the working directory. Read-only variables cannot be set again, so they are left out.
const script = `set -- "$PWD"
__session=FOLDER
[ -f "$__session/state" ] && . "$__session/state"
cd "$1"
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
	fi 2>/dev/null >"$__session/state.new" &&
		mv -f "$__session/state.new" "$__session/state" 2>/dev/null
	pwd >"$__session/directory"
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

// add makes a session whose first command runs in a directory, the default when it is empty.
func (s *sessions) add(cwd string) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= maxSessions {
		return "", &serve.Problem{Status: http.StatusServiceUnavailable, Message: "there are too many sessions: delete some, and try again"}
	}
	directory, err := os.MkdirTemp("", "execd-session-")
	if err != nil {
		return "", err
	}
	if cwd != "" {
		if err := writeNew(filepath.Join(directory, "directory"), cwd+"\n"); err != nil {
			return "", errors.Join(err, remove.All(context.Background(), directory))
		}
	}
	var random [16]byte
	rand.Read(random[:]) // crypto/rand.Read never returns an error
	id = hex.EncodeToString(random[:])
	if s.byID == nil {
		s.byID = map[string]*session{}
	}
	s.byID[id] = &session{directory: directory, lock: make(chan struct{}, 1)}
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
	listen.WithoutDeadline(c.Request()) // the body is read twice, and the answer is a stream
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
	if err := s.enter(c.Request().Context(), c.Param("id")); err != nil {
		return err
	}
	defer s.leave()
	if err := writeNew(filepath.Join(s.directory, "command"), body.Command+"\n"); err != nil {
		return err
	}
	request := map[string]any{"command": strings.Replace(script, "FOLDER", quote(s.directory), 1), "timeout": body.Timeout}
	if body.Cwd != "" {
		request["cwd"] = body.Cwd
	} else if directory := s.workingDirectory(); directory != "" {
		request["cwd"] = directory
	}
	encoded, err := json.Marshal(request)
	if err != nil {
		return err
	}
	nested := moved(c.Request(), "/command", nil)
	nested = nested.WithContext(activity.WithText(nested.Context(), body.Command))
	nested.Header = nested.Header.Clone()
	nested.Header.Set("Content-Type", "application/json")
	nested.Body, nested.ContentLength = io.NopCloser(bytes.NewReader(encoded)), int64(len(encoded))
	// The client may leave; the session is the command's until that has ended.
	h.server.ServeHTTP(&startedWriter{ResponseWriter: c.Response(), session: s}, nested)
	return h.await(s, false)
}

// await waits until the command that holds the session's lock has ended; it was started, or
// refused.
func (h *handler) await(s *session, interrupted bool) error {
	s.mu.Lock()
	id := s.command
	s.mu.Unlock()
	if id == "" {
		return nil // it was refused
	}
	running, err := h.Commands.Get(id)
	if err == nil && interrupted {
		err = h.Commands.Interrupt(id)
	}
	if errors.Is(err, command.ErrNotFound) {
		return nil // it ended long ago
	} else if err != nil {
		return err
	}
	<-running.Done()
	return nil
}

// enter waits for the command before. It returns an error when the client leaves, or when the
// session was deleted.
func (s *session) enter(ctx context.Context, id string) error {
	select {
	case s.lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		<-s.lock
		return noSession(id)
	}
	s.started = make(chan struct{})
	return nil
}

// begun notes the command that was started, "" when it was refused. Only its first call counts.
func (s *session) begun(command string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.started:
	default:
		s.command = command
		close(s.started)
	}
}

func (s *session) leave() {
	s.begun("")
	s.mu.Lock()
	s.started, s.command = nil, ""
	s.mu.Unlock()
	<-s.lock
}

// workingDirectory returns where the command before was in the end, "" for the default, which also
// stands for a directory that is gone.
func (s *session) workingDirectory() string {
	kept, err := os.OpenFile(filepath.Join(s.directory, "directory"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer kept.Close()
	text, err := io.ReadAll(io.LimitReader(kept, unix.PathMax))
	if err != nil {
		return ""
	}
	directory := strings.TrimSuffix(string(text), "\n")
	if info, err := os.Stat(directory); err != nil || !info.IsDir() {
		return ""
	}
	return directory
}

// writeNew writes a file that takes the place of what the sandbox may have put there.
func writeNew(path, text string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// deleteSession ends a session and the command that runs in it.
func (h *handler) deleteSession(c echo.Context) error {
	s, err := h.sessions.take(c.Param("id"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ended = true // no command is started any more, but for one that holds the lock already
	started := s.started
	s.mu.Unlock()
	if started != nil {
		<-started
		if err := h.await(s, true); err != nil {
			return err
		}
	}
	if err := remove.All(context.WithoutCancel(c.Request().Context()), s.directory); err != nil {
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
	w.session.begun(w.Header().Get("X-Command-ID"))
	w.ResponseWriter.WriteHeader(status)
}

// quote returns the text as one word of a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
