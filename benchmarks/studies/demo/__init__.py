"""The demos: conversion and distillation of an encoder and of a decoder, end to end, checked in a fresh process."""
