; ModuleID = 'table.c'
source_filename = "table.c"
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

%struct.lead = type { i32, i16, i16, i16, i16, i16, i16, i16, i8, i8, i16, i16, i32, i32, %struct.lead* }

@table = internal constant [9 x %struct.lead] [%struct.lead { i32 -1069521760, i16 32, i16 8, i16 -1, i16 8, i16 4, i16 0, i16 24, i8 3, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* getelementptr inbounds ([3 x %struct.lead], [3 x %struct.lead]* @words, i32 0, i32 0) }, %struct.lead { i32 -1069521760, i16 -1, i16 0, i16 -1, i16 -1, i16 0, i16 0, i16 0, i8 0, i8 0, i16 1, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 3, i16 -1, i16 0, i16 8, i16 4, i16 8, i16 0, i16 1, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 4, i16 0, i16 4, i16 -1, i16 -1, i16 0, i16 0, i16 -1, i8 2, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 5, i16 0, i16 8, i16 -1, i16 8, i16 4, i16 17, i16 4, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 6, i16 0, i16 8, i16 -1, i16 -2, i16 0, i16 0, i16 4, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 7, i16 0, i16 8, i16 -1, i16 -1, i16 0, i16 0, i16 8, i8 1, i8 0, i16 0, i16 12, i32 -2147483647, i32 32, %struct.lead* null }, %struct.lead zeroinitializer, %struct.lead { i32 8, i16 0, i16 8, i16 -1, i16 -1, i16 0, i16 0, i16 8, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }], align 16
@sluice_table = dso_local constant %struct.lead* getelementptr inbounds ([9 x %struct.lead], [9 x %struct.lead]* @table, i32 0, i32 0), align 8
@sluice_fields = dso_local constant [14 x i32] [i32 0, i32 4, i32 6, i32 8, i32 10, i32 12, i32 14, i32 16, i32 18, i32 19, i32 22, i32 24, i32 28, i32 32], align 16
@number = dso_local constant i32 3, align 4
@leads_elsewhere = internal constant [2 x %struct.lead] [%struct.lead { i32 1, i16 0, i16 8, i16 -1, i16 -1, i16 0, i16 0, i16 8, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* getelementptr inbounds ([0 x %struct.lead], [0 x %struct.lead]* @elsewhere, i32 0, i32 0) }, %struct.lead zeroinitializer], align 16
@sluice_other_table = dso_local constant %struct.lead* getelementptr inbounds ([2 x %struct.lead], [2 x %struct.lead]* @leads_elsewhere, i32 0, i32 0), align 8
@itself = internal constant [2 x %struct.lead] [%struct.lead { i32 1, i16 0, i16 8, i16 -1, i16 -1, i16 0, i16 0, i16 8, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* getelementptr inbounds ([2 x %struct.lead], [2 x %struct.lead]* @itself, i32 0, i32 0) }, %struct.lead zeroinitializer], align 16
@sluice_third_table = dso_local constant %struct.lead* getelementptr inbounds ([2 x %struct.lead], [2 x %struct.lead]* @itself, i32 0, i32 0), align 8
@empty = internal constant [1 x %struct.lead] zeroinitializer, align 16
@sluice_fourth_table = dso_local constant %struct.lead* getelementptr inbounds ([1 x %struct.lead], [1 x %struct.lead]* @empty, i32 0, i32 0), align 8
@words = internal constant [3 x %struct.lead] [%struct.lead { i32 1, i16 8, i16 8, i16 -1, i16 4, i16 4, i16 0, i16 4, i8 1, i8 0, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead { i32 1, i16 16, i16 8, i16 -1, i16 4, i16 4, i16 0, i16 4, i8 1, i8 1, i16 0, i16 -1, i32 0, i32 0, %struct.lead* null }, %struct.lead zeroinitializer], align 16
@elsewhere = external constant [0 x %struct.lead], align 8

!llvm.module.flags = !{!0, !1, !2, !3, !4}
!llvm.ident = !{!5}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 7, !"PIC Level", i32 2}
!2 = !{i32 7, !"PIE Level", i32 2}
!3 = !{i32 7, !"uwtable", i32 1}
!4 = !{i32 7, !"frame-pointer", i32 2}
!5 = !{!"Debian clang version 14.0.6"}
