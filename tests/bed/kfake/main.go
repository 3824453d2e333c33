// An implementation of Kafka's protocol that is not Apache Kafka, as a server for the tests: the
// library kfake. It listens on the given ports of 127.0.0.1, one broker for each, and prints their
// addresses.
//
//	kfake [-data DIRECTORY] [-as 2.8] PORT...
//
// It ends with SIGTERM, and when its standard input closes, as it does when the process that
// started it ends. Without -data, its topics end with it.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// What topics have that are made when they are first named, as with the other broker of the tests.
const defaultPartitions = 3

func main() {
	log.SetFlags(0)
	data := flag.String("data", "", "the directory that keeps topics and transactions when it ends")
	as := flag.String("as", "", "the Kafka release whose request versions it offers")
	flag.Parse()
	ports := make([]int, flag.NArg())
	for i, argument := range flag.Args() {
		port, err := strconv.ParseUint(argument, 10, 16)
		if err != nil {
			log.Fatalf("%q is not a port", argument)
		}
		ports[i] = int(port)
	}
	if len(ports) == 0 {
		log.Fatal("usage: kfake [-data DIRECTORY] [-as RELEASE] PORT...")
	}
	options := []kfake.Opt{
		kfake.Ports(ports...),
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(defaultPartitions),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelInfo)),
	}
	if *data != "" {
		options = append(options, kfake.DataDir(*data))
	}
	if *as != "" {
		versions := kversion.FromString(*as)
		if versions == nil {
			log.Fatalf("%q is not a release of Kafka", *as)
		}
		options = append(options, kfake.MaxVersions(versions))
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended <- syscall.SIGTERM
	}()
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	<-ended
	cluster.Close()
}
