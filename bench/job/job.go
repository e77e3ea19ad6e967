// Package job measures things in a process of its own for the bench: a floor that is no
// server. Jobs and their figures are lines of JSON on the standard streams of that process.
package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// Job measures something. It gets the words behind its name and returns figures in milliseconds.
type Job func(words []string) ([]float64, error)

// longest bounds a line, in bytes: some jobs have ten thousand words.
const longest = 16 << 20

type reply struct {
	Took  []float64 `json:"took"`
	Error string    `json:"error,omitempty"`
}

// Serve does one job a line (a JSON array: its name, its words) until the input ends.
func Serve(in io.Reader, out io.Writer, jobs map[string]Job) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longest)
	for answers := json.NewEncoder(out); lines.Scan(); {
		var words []string
		if err := json.Unmarshal(lines.Bytes(), &words); err != nil {
			return err
		}
		if err := answers.Encode(done(jobs, words)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func done(jobs map[string]Job, words []string) reply {
	if len(words) == 0 || jobs[words[0]] == nil {
		return reply{Error: fmt.Sprintf("no job %q", words)}
	}
	took, err := jobs[words[0]](words[1:])
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{Took: took}
}

// Worker is a process that serves jobs. It does one at a time.
type Worker struct {
	command *exec.Cmd
	jobs    io.WriteCloser
	answers *bufio.Scanner
	stderr  bytes.Buffer
}

// Start starts a command that calls Serve with its standard streams.
func Start(command *exec.Cmd) (*Worker, error) {
	w := &Worker{command: command}
	command.Stderr = &w.stderr
	jobs, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.jobs, w.answers = jobs, bufio.NewScanner(answers)
	w.answers.Buffer(nil, longest)
	return w, command.Start()
}

// Stop ends the process, which ends with its input. Calling it again does nothing.
func (w *Worker) Stop() {
	w.jobs.Close()
	w.command.Wait() // how it ended was in the answer to its last job
}

// Do has a job done and returns its figures in milliseconds.
func (w *Worker) Do(words ...string) ([]float64, error) {
	line, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	if _, err := w.jobs.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	if !w.answers.Scan() {
		w.Stop() // what it printed is complete then
		return nil, errors.Join(fmt.Errorf("%s ended during %s: %s", w.command.Path, words[0],
			bytes.TrimSpace(w.stderr.Bytes())), w.answers.Err())
	}
	var r reply
	if err := json.Unmarshal(w.answers.Bytes(), &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	return r.Took, nil
}
