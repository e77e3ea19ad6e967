// Command failed reads what `go test` has printed, from standard input, and prints which tests have
// failed with their first messages and, for each package, the command that runs them alone. The
// arguments are the beginning of that command: failed go test -race.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	// shown is how many commands are printed at most, and how many messages: either fits on a screen.
	shown = 30
	// said is how many messages of a test are printed, and width how long each is at most, in bytes.
	said, width = 2, 200
)

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "failed: %v\n", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, command []string) error {
	packages, err := read(in)
	if err != nil {
		return err
	}
	var messages []string
	for _, p := range packages {
		messages = append(messages, p.messages...)
	}
	for _, message := range messages[:min(len(messages), shown)] {
		if _, err := fmt.Fprintln(out, message); err != nil {
			return err
		}
	}
	for _, p := range packages[:min(len(packages), shown)] {
		if _, err := fmt.Fprintln(out, p.command(command)); err != nil {
			return err
		}
	}
	if more := len(packages) - shown; more > 0 {
		_, err = fmt.Fprintf(out, "and %d packages more\n", more)
	}
	return err
}

// failed is a package of which a test has failed, or that could not be built or run.
type failed struct {
	name     string
	tests    []string // without their subtests; none if the package failed as a whole
	messages []string // the first ones of each test and subtest, behind its name
	why      string   // in brackets behind the name of the package: [build failed]
}

func (f failed) command(begin []string) string {
	words := append(slices.Clone(begin), "-count=1")
	if len(f.tests) > 0 {
		words = append(words, "-run '^("+strings.Join(f.tests, "|")+")$'")
	}
	words = append(words, f.name)
	if f.why != "" {
		words = append(words, "# "+f.why)
	}
	return strings.Join(words, " ")
}

var (
	// A test that has failed, and one that ran when the time was over, in the list below the panic.
	failedTest  = regexp.MustCompile(`^--- FAIL: (\S+) \(`)
	runningTest = regexp.MustCompile(`^\t\t(Test[^/\s]*)\S* \([0-9.hmsµn]+\)$`)
	// A test or subtest that has failed, and a message of it below: an error or a line of its log.
	failedPart = regexp.MustCompile(`^\s*--- FAIL: (\S+) \(`)
	message    = regexp.MustCompile(`^\s+(\S+\.go:\d+: .*)`)
	// The line that ends what a package has printed, and that of one which could not be built.
	endOfPackage = regexp.MustCompile(`^(FAIL|ok  )\t(\S+)(?:\t[0-9.]+s| (\[.*\]))`)
)

// read returns the packages that have failed, in their order.
func read(in io.Reader) ([]failed, error) {
	var packages []failed
	var tests, messages []string
	part, left := "", 0 // the test whose messages come, and how many more of them are printed
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		text := strings.TrimRight(line, "\n")
		for _, pattern := range []*regexp.Regexp{failedTest, runningTest} {
			if found := pattern.FindStringSubmatch(text); found != nil && !slices.Contains(tests, found[1]) {
				tests = append(tests, found[1])
			}
		}
		if found := failedPart.FindStringSubmatch(text); found != nil {
			part, left = found[1], said
		} else if found := message.FindStringSubmatch(text); found != nil && left > 0 {
			line := part + ": " + found[1]
			messages, left = append(messages, line[:min(len(line), width)]), left-1
		}
		if found := endOfPackage.FindStringSubmatch(text); found != nil {
			if found[1] == "FAIL" {
				packages = append(packages, failed{name: found[2], tests: tests, messages: messages, why: found[3]})
			}
			tests, messages, left = nil, nil, 0
		}
		if err == io.EOF {
			return packages, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
